// create_files: many small files written with their owner, mode and time in one call; and the calls that set times
// and modes without following a symlink.
#ifdef __linux__
#include <sys/syscall.h>
#include <sys/xattr.h>
#endif

#include <string>

#include "python.hpp"

namespace ohdiff::posix {
namespace {

constexpr int status_good = 0, status_owner_refused = -1;
constexpr std::uint32_t highest_id = std::numeric_limits<std::uint32_t>::max() - 1;  // the last means "leave it"

struct NewFile {
  const char* data;
  std::int64_t size;
  std::int64_t mtime_ns;
  std::uint32_t mode, uid, gid;
};

// Whether a directory hands an ACL down to what is created in it: the new file must then be freed of that.
class InheritedAcl {
 public:
  void remove_from(int fd, int dir_fd) {
#ifdef __linux__
    if (dir_fd != asked_) {
      is_handed_down_ = fgetxattr(dir_fd, "system.posix_acl_default", nullptr, 0) > 0;
      asked_ = dir_fd;
    }
    if (is_handed_down_) fremovexattr(fd, "system.posix_acl_access");
#else
    static_cast<void>(fd);
    static_cast<void>(dir_fd);
#endif
  }

 private:
  int asked_ = -1;
  bool is_handed_down_ = false;
};

int write_all(int fd, const char* data, std::int64_t size) {
  while (size > 0) {
    const ssize_t written = retry_interrupted([&] { return write(fd, data, static_cast<std::size_t>(size)); });
    if (written < 0) return errno;
    data += written;
    size -= written;
  }
  return 0;
}

// chown clears the set-id bits, so the mode comes after it. Without the owner they must not be set at all: they
// would give away the rights of whoever runs the restore.
int dress(int fd, const NewFile& file, bool restores_owner, bool& is_owner_refused) {
  std::uint32_t mode = file.mode & 07777;
  if (restores_owner && fchown(fd, file.uid, file.gid) != 0) {
    is_owner_refused = true;
    mode &= 01777;
  }
  if (fchmod(fd, static_cast<mode_t>(mode)) != 0) return errno;
  const timespec time = to_timespec(file.mtime_ns);
  const timespec times[2] = {time, time};
  return futimens(fd, times) == 0 ? 0 : errno;
}

int create_file(InheritedAcl& acl, int dir_fd, const char* name, const NewFile& file, bool restores_owner) {
  Descriptor created(
      retry_interrupted([&] { return openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | open_safely, 0600); }));
  if (!created.is_open()) return errno;
  bool is_owner_refused = false;
  acl.remove_from(created.get(), dir_fd);
  int error = write_all(created.get(), file.data, file.size);
  if (!error) error = dress(created.get(), file, restores_owner, is_owner_refused);
  const int close_error = created.close();
  if (!error) error = close_error;
  if (error) unlinkat(dir_fd, name, 0);
  return error ? error : is_owner_refused ? status_owner_refused : status_good;
}

std::vector<std::uint32_t> to_ids(nb::handle ids, std::size_t count, const char* what) {
  if (ids.is_none()) return std::vector<std::uint32_t>(count);
  if (!nb::isinstance<nb::list>(ids)) throw nb::type_error("uids and gids: a list or None");
  return to_integers<std::uint32_t>(nb::borrow<nb::list>(ids), count, what, 0, highest_id);
}

struct NewFileColumns {
  nb::list starts, sizes, modes;
  nb::object uids, gids;
  nb::list mtimes_ns;
};

std::vector<NewFile> to_new_files(const NewFileColumns& columns, std::size_t count, const BufferView& data) {
  if (columns.uids.is_none() != columns.gids.is_none())
    throw std::invalid_argument("uids and gids: both or neither");
  const auto starts = to_integers<std::int64_t>(columns.starts, count, "starts", 0);
  const auto sizes = to_integers<std::int64_t>(columns.sizes, count, "sizes", 0);
  const auto modes = to_integers<std::uint32_t>(columns.modes, count, "modes");
  const auto mtimes = to_integers<std::int64_t>(columns.mtimes_ns, count, "mtimes_ns");
  const auto uids = to_ids(columns.uids, count, "uids");
  const auto gids = to_ids(columns.gids, count, "gids");
  std::vector<NewFile> files;
  files.reserve(count);
  for (std::size_t row = 0; row < count; ++row) {
    if (starts[row] > data.size() || sizes[row] > data.size() - starts[row])
      throw std::invalid_argument("a file's range lies outside the data");
    files.push_back({data.data() + starts[row], sizes[row], mtimes[row], modes[row], uids[row], gids[row]});
  }
  return files;
}

nb::list create_files(const nb::list& dir_fds, const nb::list& names, nb::object data, const nb::list& starts,
                      const nb::list& sizes, const nb::list& modes, nb::object uids, nb::object gids,
                      const nb::list& mtimes_ns) {
  const NameList held(names);
  const std::vector<int> directories = to_descriptors(dir_fds, held.size());
  const BufferView view(data, false);
  const auto files = to_new_files({starts, sizes, modes, uids, gids, mtimes_ns}, held.size(), view);
  const bool restores_owner = !uids.is_none();
  std::vector<int> statuses(held.size());
  {
    nb::gil_scoped_release unlocked;
    InheritedAcl acl;
    for (std::size_t row = 0; row < files.size(); ++row)
      statuses[row] = create_file(acl, directories[row], held[row], files[row], restores_owner);
  }
  return to_python(statuses);
}

void set_times(int dir_fd, const nb::bytes& name, std::int64_t mtime_ns) {
  const char* text = checked_name(name);
  const timespec time = to_timespec(mtime_ns);
  const timespec times[2] = {time, time};
  nb::gil_scoped_release unlocked;
  if (retry_interrupted([&] { return utimensat(dir_fd, text, times, AT_SYMLINK_NOFOLLOW); }) != 0) throw_errno();
}

#ifdef __linux__
constexpr long call_fchmodat2 = 452;

// For kernels before 6.6: the descriptor pins the entry, so what the magic link reaches cannot be swapped for a link.
void set_mode_through_proc(int dir_fd, const char* name, mode_t mode) {
  const Descriptor entry(openat(dir_fd, name, O_PATH | open_safely));
  struct stat found;
  if (!entry.is_open() || fstat(entry.get(), &found) != 0) throw_errno();
  if (S_ISLNK(found.st_mode)) throw_errno(EOPNOTSUPP);
  if (chmod(("/proc/self/fd/" + std::to_string(entry.get())).c_str(), mode) != 0) throw_errno();
}
#endif

void set_mode(int dir_fd, const nb::bytes& name, std::uint32_t mode) {
  const char* text = checked_name(name);
  nb::gil_scoped_release unlocked;
  change_mode(dir_fd, text, static_cast<mode_t>(mode & 07777));
}

}  // namespace

void change_mode(int dir_fd, const char* name, mode_t mode) {
#if defined(__linux__) && !defined(__alpha__)
  if (syscall(call_fchmodat2, dir_fd, name, mode, AT_SYMLINK_NOFOLLOW) == 0) return;
  // Sandboxes answer unknown calls with EPERM as well; where it was meant, the second way says so again.
  if (errno != ENOSYS && errno != EPERM) throw_errno();
  set_mode_through_proc(dir_fd, name, mode);
#elif defined(__linux__)
  set_mode_through_proc(dir_fd, name, mode);
#else
  if (fchmodat(dir_fd, name, mode, AT_SYMLINK_NOFOLLOW) != 0) throw_errno();
#endif
}

void bind_creating(nb::module_& module) {
  module.def("create_files", &create_files, nb::arg("dir_fds"), nb::arg("names"), nb::arg("data"), nb::arg("starts"),
             nb::arg("sizes"), nb::arg("modes"), nb::arg("uids").none(), nb::arg("gids").none(),
             nb::arg("mtimes_ns"));
  module.def("set_times", &set_times, nb::arg("dir_fd"), nb::arg("name"), nb::arg("mtime_ns"));
  module.def("set_mode", &set_mode, nb::arg("dir_fd"), nb::arg("name"), nb::arg("mode"));
}

}  // namespace ohdiff::posix
