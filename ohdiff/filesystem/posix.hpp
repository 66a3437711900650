// What the batch file calls share: descriptors, interrupted calls, times in nanoseconds, one entry's status.
// Nothing here knows Python (see python.hpp), so all of it may run while the interpreter's lock is released.
// System errors are thrown as std::system_error, or returned as an errno where one file must not stop a batch.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <limits>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#ifndef O_NOATIME
#define O_NOATIME 0
#endif

namespace ohdiff::posix {

inline constexpr std::int64_t time_unknown = std::numeric_limits<std::int64_t>::min();
inline constexpr int open_safely = O_NOFOLLOW | O_CLOEXEC;

template <class Call>
auto retry_interrupted(Call call) {
  for (;;) {
    auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

[[noreturn]] inline void throw_errno(int error = errno) {
  throw std::system_error(error, std::generic_category());
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }
  bool is_open() const { return fd_ >= 0; }
  int get() const { return fd_; }
  // Network file systems report a failed write only here. EINTR still closes on Linux, so it is never retried.
  int close() {
    if (fd_ < 0) return 0;
    const int result = ::close(std::exchange(fd_, -1));
    return result == 0 || errno == EINTR ? 0 : errno;
  }

 private:
  int fd_;
};

// File systems with 64-bit seconds hold times that 64-bit nanoseconds cannot: those become the nearest value.
inline std::int64_t to_nanoseconds(std::int64_t seconds, std::int64_t nanoseconds) {
  std::int64_t scaled, sum;
  if (!__builtin_mul_overflow(seconds, 1'000'000'000, &scaled) && !__builtin_add_overflow(scaled, nanoseconds, &sum))
    return sum == time_unknown ? sum + 1 : sum;
  return seconds < 0 ? time_unknown + 1 : std::numeric_limits<std::int64_t>::max();
}

inline timespec to_timespec(std::int64_t nanoseconds) {
  std::int64_t seconds = nanoseconds / 1'000'000'000;
  std::int64_t rest = nanoseconds % 1'000'000'000;
  if (rest < 0) {
    seconds -= 1;
    rest += 1'000'000'000;
  }
  timespec time{};
  time.tv_sec = static_cast<time_t>(seconds);
  time.tv_nsec = static_cast<long>(rest);
  return time;
}

#ifdef __APPLE__
inline std::int64_t mtime_ns_of(const struct stat& found) {
  return to_nanoseconds(found.st_mtimespec.tv_sec, found.st_mtimespec.tv_nsec);
}
inline std::int64_t ctime_ns_of(const struct stat& found) {
  return to_nanoseconds(found.st_ctimespec.tv_sec, found.st_ctimespec.tv_nsec);
}
#else
inline std::int64_t mtime_ns_of(const struct stat& found) {
  return to_nanoseconds(found.st_mtim.tv_sec, found.st_mtim.tv_nsec);
}
inline std::int64_t ctime_ns_of(const struct stat& found) {
  return to_nanoseconds(found.st_ctim.tv_sec, found.st_ctim.tv_nsec);
}
#endif

struct Status {
  std::int64_t size, mtime_ns, ctime_ns, btime_ns, blocks512;
  std::uint64_t inode, device, rdev, link_count, flags;
  std::uint32_t mode, uid, gid;
};

// Both return 0 or an errno; neither follows a symlink.
int read_status(int dir_fd, const char* name, Status& status);
int read_status(int fd, Status& status);

// Sets permission bits; throws EOPNOTSUPP for a symlink.
void change_mode(int dir_fd, const char* name, mode_t mode);

// Whether an xattr is ours to take away: some the system keeps by itself.
bool is_removable_xattr(const std::string& name);

struct Xattr {
  std::string name, value;
};
using Xattrs = std::vector<Xattr>;

// `at` is listxattrat (Linux 6.13), `proc` goes through /proc/self/fd, `descriptor` opens files and directories.
enum class XattrWay { at, proc, descriptor };
XattrWay best_xattr_way();

// One entry's extended attributes, never those of what a symlink points at.
class XattrTarget {
 public:
  XattrTarget(int dir_fd, XattrWay way);
  explicit XattrTarget(int fd) : dir_fd_(-1), way_(XattrWay::descriptor), fd_(fd) {}
  XattrTarget(const XattrTarget&) = delete;
  XattrTarget& operator=(const XattrTarget&) = delete;
  ~XattrTarget() { release(); }

  int aim_at(const char* name);  // 0 or an errno; ENOTSUP where this way cannot reach the type of entry
  ssize_t list(char* into, std::size_t size) const;
  ssize_t get(const char* xattr, char* into, std::size_t size) const;
  int set(const Xattr& xattr) const;
  int remove(const char* xattr) const;

 private:
  int aim_by_opening(const char* name);
  void release();

  int dir_fd_;
  XattrWay way_;
  int fd_ = -1;
  const char* name_ = nullptr;
  std::string path_;
  std::size_t path_stem_ = 0;
};

class XattrReader {
 public:
  // The xattrs of the target sorted by name; 0 or an errno. "None" and "not supported here" are both an empty list.
  int read(const XattrTarget& target, Xattrs& found);

 private:
  int read_value(const XattrTarget& target, Xattr& xattr);

  // The kernel allocates as much as it is offered: 64 KiB instead of 256 bytes costs .2 us a call.
  std::vector<char> names_ = std::vector<char>(256);
  std::vector<char> value_ = std::vector<char>(256);
};

}  // namespace ohdiff::posix
