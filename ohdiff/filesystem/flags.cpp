// get_flags and set_flags: what chattr (Linux) or chflags (macOS) sets, in the same bits that stat_columns reports.
#ifdef __linux__
#include <linux/fs.h>
#include <sys/ioctl.h>
#endif

#include "python.hpp"

namespace ohdiff::posix {
namespace {

#ifdef __linux__

// These inode flags have the values of their statx attribute bits, so no table stands between the two.
constexpr int settable_flags = FS_COMPR_FL | FS_IMMUTABLE_FL | FS_APPEND_FL | FS_NODUMP_FL;
static_assert(FS_COMPR_FL == STATX_ATTR_COMPRESSED && FS_IMMUTABLE_FL == STATX_ATTR_IMMUTABLE &&
              FS_APPEND_FL == STATX_ATTR_APPEND && FS_NODUMP_FL == STATX_ATTR_NODUMP);

// The request is declared with a long, but the kernel reads and writes an int.
int read_inode_flags(int fd) {
  int flags = 0;
  if (ioctl(fd, FS_IOC_GETFLAGS, &flags) != 0) throw_errno();
  return flags;
}

std::uint64_t get_flags(int fd) {
  nb::gil_scoped_release unlocked;
  return static_cast<std::uint64_t>(read_inode_flags(fd) & settable_flags);
}

void set_flags(int fd, std::uint64_t flags) {
  if (flags & ~static_cast<std::uint64_t>(settable_flags)) throw std::invalid_argument("flags: unknown bits");
  nb::gil_scoped_release unlocked;
  const int present = read_inode_flags(fd);
  int wanted = (present & ~settable_flags) | static_cast<int>(flags);
  if (wanted != present && ioctl(fd, FS_IOC_SETFLAGS, &wanted) != 0) throw_errno();
}

#else

std::uint64_t get_flags(int fd) {
  Status status;
  if (const int error = read_status(fd, status)) throw_errno(error);
  return status.flags;
}

void set_flags(int fd, std::uint64_t flags) {
#ifdef __APPLE__
  if (fchflags(fd, static_cast<unsigned int>(flags)) != 0) throw_errno();
#else
  static_cast<void>(fd);
  if (flags != 0) throw_errno(ENOTSUP);
#endif
}

#endif

}  // namespace

void bind_flags(nb::module_& module) {
  module.def("get_flags", &get_flags, nb::arg("fd"));
  module.def("set_flags", &set_flags, nb::arg("fd"), nb::arg("flags"));
}

}  // namespace ohdiff::posix
