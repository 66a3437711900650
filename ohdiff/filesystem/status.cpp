// stat_columns and stat_fd: the status of many entries of a directory at once, as parallel columns.
// Linux through statx, which alone knows birth times and flags; other systems through fstatat.
#ifdef __linux__
#include <sys/sysmacros.h>
#endif

#include "breaks.hpp"
#include "python.hpp"

namespace ohdiff::posix {

#ifdef __linux__
namespace {

constexpr std::uint64_t settable_flags =
    STATX_ATTR_COMPRESSED | STATX_ATTR_IMMUTABLE | STATX_ATTR_APPEND | STATX_ATTR_NODUMP;

std::int64_t to_nanoseconds(const struct statx_timestamp& time) {
  return posix::to_nanoseconds(time.tv_sec, time.tv_nsec);
}

int read_statx(int dir_fd, const char* name, int how, Status& status) {
  struct statx found;
  if (retry_interrupted([&] { return statx(dir_fd, name, how, STATX_BASIC_STATS | STATX_BTIME, &found); }) != 0)
    return errno;
  status.size = static_cast<std::int64_t>(found.stx_size);
  status.mtime_ns = to_nanoseconds(found.stx_mtime);
  status.ctime_ns = to_nanoseconds(found.stx_ctime);
  status.btime_ns = found.stx_mask & STATX_BTIME ? to_nanoseconds(found.stx_btime) : time_unknown;
  status.blocks512 = static_cast<std::int64_t>(found.stx_blocks);
  status.inode = found.stx_ino;
  status.device = makedev(found.stx_dev_major, found.stx_dev_minor);
  status.rdev = makedev(found.stx_rdev_major, found.stx_rdev_minor);
  status.link_count = found.stx_nlink;
  status.flags = found.stx_attributes & settable_flags;
  status.mode = found.stx_mode;
  status.uid = found.stx_uid;
  status.gid = found.stx_gid;
  return 0;
}

}  // namespace

int read_status(int dir_fd, const char* name, Status& status) {
  return read_statx(dir_fd, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, status);
}

int read_status(int fd, Status& status) { return read_statx(fd, "", AT_EMPTY_PATH, status); }

#else
namespace {

void fill(const struct stat& found, Status& status) {
  status.size = found.st_size;
  status.mtime_ns = mtime_ns_of(found);
  status.ctime_ns = ctime_ns_of(found);
  status.btime_ns = time_unknown;
  status.flags = 0;
#ifdef __APPLE__
  status.btime_ns = to_nanoseconds(found.st_birthtimespec.tv_sec, found.st_birthtimespec.tv_nsec);
  status.flags = found.st_flags;
#endif
  status.blocks512 = found.st_blocks;
  status.inode = found.st_ino;
  status.device = static_cast<std::uint64_t>(found.st_dev);
  status.rdev = static_cast<std::uint64_t>(found.st_rdev);
  status.link_count = found.st_nlink;
  status.mode = found.st_mode;
  status.uid = found.st_uid;
  status.gid = found.st_gid;
}

}  // namespace

int read_status(int dir_fd, const char* name, Status& status) {
  struct stat found;
  if (retry_interrupted([&] { return fstatat(dir_fd, name, &found, AT_SYMLINK_NOFOLLOW); }) != 0) return errno;
  fill(found, status);
  return 0;
}

int read_status(int fd, Status& status) {
  struct stat found;
  if (retry_interrupted([&] { return fstat(fd, &found); }) != 0) return errno;
  fill(found, status);
  return 0;
}
#endif

namespace {

// st_size of a link is 0 in some file systems (/proc), so the text decides how long it is.
int read_target(int dir_fd, const char* name, std::string& target) {
  for (std::size_t room = 256;; room *= 2) {
    target.resize(room);
    const ssize_t got = readlinkat(dir_fd, name, target.data(), room);
    if (got < 0) return errno;
    if (static_cast<std::size_t>(got) < room) {
      target.resize(static_cast<std::size_t>(got));
      return 0;
    }
  }
}

struct Failure {
  std::size_t name;
  int error;
  const char* what;
};

class EntryBatch {
 public:
  EntryBatch(int dir_fd, const NameList& names, bool has_xattrs)
      : dir_fd_(dir_fd), names_(names), has_xattrs_(has_xattrs), target_(dir_fd, best_xattr_way()) {
    rows_.reserve(names.size());
    origins_.reserve(names.size());
  }

  void read_all() {
    for (std::size_t name = 0; name < names_.size(); ++name) {
      read(name);
      break_if_due();
    }
  }

  nb::tuple to_tuple() const {
    return nb::make_tuple(make_list(rows_.size(), [&](auto row) { return nb::borrow(names_.object(origins_[row])); }),
                          column(&Status::mode), column(&Status::uid), column(&Status::gid), column(&Status::size),
                          column(&Status::mtime_ns), column(&Status::ctime_ns), column(&Status::btime_ns),
                          column(&Status::inode), column(&Status::device), column(&Status::link_count),
                          column(&Status::rdev), column(&Status::flags), column(&Status::blocks512),
                          by_row(links_), by_row(xattrs_), failures());
  }

 private:
  void read(std::size_t name) {
    Status status;
    if (const int error = read_status(dir_fd_, names_[name], status)) return fail(name, error, "stat");
    std::string link;
    if (S_ISLNK(status.mode))
      if (const int error = read_target(dir_fd_, names_[name], link)) return fail(name, error, "readlink");
    Xattrs xattrs;
    if (has_xattrs_) {
      if (const int error = read_xattrs(name, xattrs)) {
        fail(name, error, "xattr");
        if (error == ENOENT) return;
      }
    }
    if (S_ISLNK(status.mode)) links_.emplace_back(rows_.size(), std::move(link));
    if (!xattrs.empty()) xattrs_.emplace_back(rows_.size(), std::move(xattrs));
    rows_.push_back(status);
    origins_.push_back(name);
  }

  int read_xattrs(std::size_t name, Xattrs& xattrs) {
    const int error = target_.aim_at(names_[name]);
    if (error == ENOTSUP) return 0;
    return error ? error : reader_.read(target_, xattrs);
  }

  void fail(std::size_t name, int error, const char* what) { failures_.push_back({name, error, what}); }

  template <class Field>
  nb::list column(Field Status::*field) const {
    return make_column(rows_.size(), [&](std::size_t row) { return rows_[row].*field; });
  }

  template <class Pairs>
  static nb::dict by_row(const Pairs& pairs) {
    nb::dict found;
    for (const auto& [row, value] : pairs) found[to_python(static_cast<std::uint64_t>(row))] = to_python(value);
    return found;
  }

  nb::list failures() const {
    return make_list(failures_.size(), [&](std::size_t row) {
      const Failure& failure = failures_[row];
      return nb::object(nb::make_tuple(names_.object(failure.name), failure.error, failure.what));
    });
  }

  int dir_fd_;
  const NameList& names_;
  bool has_xattrs_;
  XattrTarget target_;
  XattrReader reader_;
  std::vector<Status> rows_;
  std::vector<std::size_t> origins_;
  std::vector<std::pair<std::size_t, std::string>> links_;
  std::vector<std::pair<std::size_t, Xattrs>> xattrs_;
  std::vector<Failure> failures_;
};

nb::tuple stat_columns(int dir_fd, const nb::list& names, bool with_xattrs) {
  const NameList held(names);
  EntryBatch batch(dir_fd, held, with_xattrs);
  {
    nb::gil_scoped_release unlocked;
    batch.read_all();
  }
  return batch.to_tuple();
}

nb::tuple stat_fd(int fd, bool with_xattrs) {
  Status status;
  Xattrs xattrs;
  {
    nb::gil_scoped_release unlocked;
    int error = read_status(fd, status);
    if (!error && with_xattrs) error = XattrReader().read(XattrTarget(fd), xattrs);
    if (error) throw_errno(error);
  }
  return nb::make_tuple(status.mode, status.uid, status.gid, status.size, status.mtime_ns, status.ctime_ns,
                        status.btime_ns, status.inode, status.device, status.link_count, status.rdev, status.flags,
                        status.blocks512, to_python(xattrs));
}

}  // namespace

void bind_status(nb::module_& module) {
  module.def("stat_columns", &stat_columns, nb::arg("dir_fd"), nb::arg("names"), nb::arg("with_xattrs"));
  module.def("stat_fd", &stat_fd, nb::arg("fd"), nb::arg("with_xattrs") = false);
  module.attr("TIME_UNKNOWN") = time_unknown;
}

}  // namespace ohdiff::posix
