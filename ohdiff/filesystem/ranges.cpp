// Ranges of one open file: where its data and its holes are, punching holes, and rewriting only what differs.
#include <algorithm>
#include <cstring>

#include "python.hpp"

namespace ohdiff::posix {
namespace {

constexpr std::int64_t piece_size = 128 * 1024;  // stays in the second-level cache between read and compare

struct Extent {
  std::int64_t start, end;
};

// The caller's file offset is where it was afterwards.
class OffsetKeeper {
 public:
  explicit OffsetKeeper(int fd) : fd_(fd), offset_(lseek(fd, 0, SEEK_CUR)) {
    if (offset_ < 0) throw_errno();
  }
  OffsetKeeper(const OffsetKeeper&) = delete;
  OffsetKeeper& operator=(const OffsetKeeper&) = delete;
  ~OffsetKeeper() { lseek(fd_, offset_, SEEK_SET); }

 private:
  int fd_;
  off_t offset_;
};

std::vector<Extent> find_extents(int fd, std::int64_t size) {
  const OffsetKeeper keeper(fd);
  std::vector<Extent> extents;
  for (std::int64_t at = 0; at < size;) {
    const std::int64_t start = lseek(fd, at, SEEK_DATA);
    if (start < 0 && errno == ENXIO) break;
    if (start < 0 && at == 0 && (errno == EINVAL || errno == ENOTSUP)) return {{0, size}};
    if (start < 0) throw_errno();
    if (start >= size) break;
    const std::int64_t end = lseek(fd, start, SEEK_HOLE);
    if (end < 0 && errno == ENXIO) break;
    if (end < 0) throw_errno();
    extents.push_back({start, std::min(end, size)});
    at = end;
  }
  return extents;
}

nb::list data_extents(int fd, std::int64_t size) {
  if (size < 0) throw std::invalid_argument("size is negative");
  std::vector<Extent> extents;
  {
    nb::gil_scoped_release unlocked;
    extents = find_extents(fd, size);
  }
  return make_list(extents.size(), [&](std::size_t row) {
    return nb::object(nb::make_tuple(extents[row].start, extents[row].end));
  });
}

void check_range(std::int64_t offset, std::int64_t size) {
  std::int64_t end;
  if (offset < 0 || size < 0 || __builtin_add_overflow(offset, size, &end))
    throw std::invalid_argument("the range lies outside of any file");
}

void punch_hole(int fd, std::int64_t offset, std::int64_t size) {
  check_range(offset, size);
  if (size == 0) return;
  nb::gil_scoped_release unlocked;
#ifdef FALLOC_FL_PUNCH_HOLE
  const int how = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  if (retry_interrupted([&] { return fallocate(fd, how, offset, size); }) != 0) throw_errno();
#else
  static_cast<void>(fd);
  throw_errno(ENOTSUP);
#endif
}

// Whether the file holds exactly this at the offset; what lies past its end does not.
bool is_present(int fd, std::int64_t offset, const char* data, std::int64_t size, std::vector<char>& found) {
  for (std::int64_t done = 0; done < size;) {
    const ssize_t got = retry_interrupted(
        [&] { return pread(fd, found.data(), static_cast<std::size_t>(size - done), offset + done); });
    if (got < 0) throw_errno();
    if (got == 0 || std::memcmp(found.data(), data + done, static_cast<std::size_t>(got)) != 0) return false;
    done += got;
  }
  return true;
}

void write_at(int fd, std::int64_t offset, const char* data, std::int64_t size) {
  for (std::int64_t done = 0; done < size;) {
    const ssize_t written = retry_interrupted(
        [&] { return pwrite(fd, data + done, static_cast<std::size_t>(size - done), offset + done); });
    if (written < 0) throw_errno();
    done += written;
  }
}

std::int64_t compare_and_write(int fd, std::int64_t offset, nb::object data) {
  const BufferView view(data, false);
  check_range(offset, view.size());
  nb::gil_scoped_release unlocked;
  std::vector<char> found(static_cast<std::size_t>(std::min(piece_size, view.size())));
  std::int64_t written = 0;
  for (std::int64_t at = 0; at < view.size(); at += piece_size) {
    const std::int64_t size = std::min(piece_size, view.size() - at);
    if (is_present(fd, offset + at, view.data() + at, size, found)) continue;
    write_at(fd, offset + at, view.data() + at, size);
    written += size;
  }
  return written;
}

void sync_filesystem(int fd) {
  nb::gil_scoped_release unlocked;
#ifdef __linux__
  if (retry_interrupted([&] { return syncfs(fd); }) != 0) throw_errno();
#else
  static_cast<void>(fd);
  sync();
#endif
}

}  // namespace

void bind_ranges(nb::module_& module) {
  module.def("data_extents", &data_extents, nb::arg("fd"), nb::arg("size"));
  module.def("punch_hole", &punch_hole, nb::arg("fd"), nb::arg("offset"), nb::arg("size"));
  module.def("compare_and_write", &compare_and_write, nb::arg("fd"), nb::arg("offset"), nb::arg("data"));
  module.def("sync_filesystem", &sync_filesystem, nb::arg("fd"));
}

}  // namespace ohdiff::posix
