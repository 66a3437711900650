// read_files: the contents of many small files, back to back into one buffer, each proved to be the file that was
// listed and not to have changed while it was read.
#include "breaks.hpp"
#include "python.hpp"

#ifdef __linux__
#include <sys/syscall.h>
#include <sys/uio.h>
#endif

namespace ohdiff::posix {
namespace {

constexpr int status_good = 0, status_changed = -1;

struct Expected {
  std::int64_t size, mtime_ns, ctime_ns;
  std::uint64_t inode;
};

// Reading leaves access times alone where the system lets us: on the files of our own user, or all with CAP_FOWNER.
// A refused try costs a second open, so after one we try again only when a file of our own has come by.
class Opener {
 public:
  int open(int dir_fd, const char* name) {
    int fd = -1;
    if (may_skip_atime_) {
      fd = open_with(dir_fd, name, O_NOATIME);
      if (fd >= 0 || errno != EPERM) return fd;
      may_skip_atime_ = false;
    }
    return open_with(dir_fd, name, 0);
  }

  void saw_owner(uid_t owner) {
    if (!may_skip_atime_ && owner == self_) may_skip_atime_ = true;
  }

 private:
  // O_NONBLOCK: a FIFO that has taken the file's place must not hold the whole batch.
  static int open_with(int dir_fd, const char* name, int more) {
    return retry_interrupted([&] { return openat(dir_fd, name, O_RDONLY | O_NONBLOCK | open_safely | more); });
  }

  const uid_t self_ = geteuid();
  bool may_skip_atime_ = true;
};

bool is_as_expected(const struct stat& found, const Expected& expected) {
  return S_ISREG(found.st_mode) && found.st_size == expected.size && mtime_ns_of(found) == expected.mtime_ns &&
         ctime_ns_of(found) == expected.ctime_ns && static_cast<std::uint64_t>(found.st_ino) == expected.inode;
}

#ifdef __linux__
constexpr int uncached_flag = 0x80;   // RWF_DONTCACHE, Linux 6.14
constexpr long cachestat_call = 451;  // Linux 6.5, the same on every architecture

ssize_t read_uncached(int fd, char* into, std::size_t size) {
  const iovec part{into, size};
  return syscall(SYS_preadv2, fd, &part, 1L, -1L, -1L, uncached_flag);
}

// False where the system cannot tell.
bool is_out_of_cache(int fd) {
  const std::uint64_t everything[2] = {0, 0};
  std::uint64_t found[5] = {};
  return syscall(cachestat_call, fd, everything, found, 0U) == 0 && found[0] == 0;
}

void drop_from_cache(int fd) { posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); }
#else
ssize_t read_uncached(int, char*, std::size_t) {
  errno = EOPNOTSUPP;
  return -1;
}
bool is_out_of_cache(int) { return false; }
void drop_from_cache(int) {}
#endif

// Reads files whole; if asked to, without leaving pages in the page cache that were not there before. Where the file
// system takes it, reads are uncached, which is exact to the page; elsewhere a file of which nothing was cached is
// dropped once it was read.
class Reader {
 public:
  explicit Reader(bool leaves_cache) : leaves_cache_(leaves_cache), may_be_uncached_(leaves_cache) {}

  // The number of bytes read, which is less than the size only at the end of the file or when errno says why.
  std::int64_t read_up_to(int fd, char* into, std::int64_t size) {
    if (may_be_uncached_) {
      const std::int64_t done = read_by(read_uncached, fd, into, size);
      if (done > 0 || errno != EOPNOTSUPP) return done;
      may_be_uncached_ = false;
    }
    const bool is_to_drop = leaves_cache_ && is_out_of_cache(fd);
    const std::int64_t done = read_by(::read, fd, into, size);
    const int error = errno;
    if (is_to_drop) drop_from_cache(fd);
    errno = error;
    return done;
  }

 private:
  template <class Read>
  static std::int64_t read_by(Read read_some, int fd, char* into, std::int64_t size) {
    std::int64_t done = 0;
    errno = 0;
    while (done < size) {
      const ssize_t got =
          retry_interrupted([&] { return read_some(fd, into + done, static_cast<std::size_t>(size - done)); });
      if (got <= 0) break;
      done += got;
      errno = 0;
    }
    return done;
  }

  const bool leaves_cache_;
  bool may_be_uncached_;
};

int read_file(Opener& opener, Reader& reader, int dir_fd, const char* name, const Expected& expected, char* into) {
  const Descriptor file(opener.open(dir_fd, name));
  if (!file.is_open()) return errno;
  const std::int64_t got = reader.read_up_to(file.get(), into, expected.size);
  const int read_error = got < expected.size ? errno : 0;
  struct stat found;
  if (fstat(file.get(), &found) != 0) return errno;
  opener.saw_owner(found.st_uid);
  if (!is_as_expected(found, expected)) return status_changed;
  if (read_error) return read_error;
  return got == expected.size ? status_good : status_changed;
}

std::vector<Expected> to_expected(const nb::tuple& columns, std::size_t count) {
  if (columns.size() != 4) throw std::invalid_argument("expected: sizes, mtimes_ns, ctimes_ns and inodes");
  for (nb::handle column : columns)
    if (!nb::isinstance<nb::list>(column)) throw nb::type_error("expected: every column is a list");
  const auto column = [&](std::size_t at) { return nb::borrow<nb::list>(columns[at]); };
  const auto sizes = to_integers<std::int64_t>(column(0), count, "sizes", 0);
  const auto mtimes = to_integers<std::int64_t>(column(1), count, "mtimes_ns");
  const auto ctimes = to_integers<std::int64_t>(column(2), count, "ctimes_ns");
  const auto inodes = to_integers<std::uint64_t>(column(3), count, "inodes");
  std::vector<Expected> expected;
  expected.reserve(count);
  for (std::size_t row = 0; row < count; ++row)
    expected.push_back({sizes[row], mtimes[row], ctimes[row], inodes[row]});
  return expected;
}

void check_room(const std::vector<Expected>& expected, std::int64_t start, std::int64_t room) {
  if (start < 0 || start > room) throw std::invalid_argument("start lies outside the buffer");
  room -= start;
  for (const Expected& file : expected) {
    if (file.size > room) throw std::invalid_argument("the buffer is too small for the expected sizes");
    room -= file.size;
  }
}

nb::list read_files(const nb::list& dir_fds, const nb::list& names, const nb::tuple& expected, nb::object buffer,
                    std::int64_t start, bool leaves_cache) {
  const NameList held(names);
  const std::vector<int> directories = to_descriptors(dir_fds, held.size());
  const std::vector<Expected> files = to_expected(expected, held.size());
  const BufferView view(buffer, true);
  check_room(files, start, view.size());
  std::vector<int> statuses(held.size());
  {
    nb::gil_scoped_release unlocked;
    Opener opener;
    Reader reader(leaves_cache);
    char* into = view.data() + start;
    for (std::size_t row = 0; row < files.size(); ++row) {
      statuses[row] = read_file(opener, reader, directories[row], held[row], files[row], into);
      into += files[row].size;
      break_if_due();
    }
  }
  return to_python(statuses);
}

}  // namespace

void bind_reading(nb::module_& module) {
  module.def("read_files", &read_files, nb::arg("dir_fds"), nb::arg("names"), nb::arg("expected"), nb::arg("buffer"),
             nb::arg("start") = 0, nb::arg("leaves_cache") = false);
}

}  // namespace ohdiff::posix
