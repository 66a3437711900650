// Opening and searching the sorted id table: see id_table.hpp for what it is and leaves to others.
// Every position in a file follows from the row count, so a damaged header cannot point anywhere: it is refused
// unless its row count explains the file's size to the byte. Integers in the file are little-endian.
#include "id_table.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "id_table_layout.hpp"

namespace ohdiff {
namespace {

using namespace id_table;

constexpr std::uint64_t kRowsPerBucket = 64;
constexpr std::uint64_t kBlockBits = 512;
constexpr std::size_t kLineSize = sizeof(CacheLine);
// Neighbouring buckets are read together up to a window, over gaps cheaper to copy than a second system call.
constexpr std::uint64_t kWindowBytes = 256 << 10;
constexpr std::uint64_t kGapBytes = 8 << 10;
// Bounds the working memory of one find() to about 17 bytes for each of these keys.
constexpr std::size_t kKeysPerPass = std::size_t{1} << 20;
// macOS refuses a single read or write of 2 GiB and more.
constexpr std::size_t kTransferBytesMax = 256 << 20;

}  // namespace

RowShape checked_shape(std::uint64_t key_size, std::uint64_t value_size) {
  if (key_size != 16 && key_size != 32) throw std::invalid_argument("key_size is 16 or 32");
  if (value_size == 0 || value_size > 256 || value_size % 4 != 0)
    throw std::invalid_argument("value_size is a multiple of 4 from 4 to 256");
  return {static_cast<std::uint32_t>(key_size), static_cast<std::uint32_t>(value_size)};
}

TableLayout::TableLayout(RowShape shape, std::uint64_t count) {
  const auto whole = [](std::uint64_t size, std::uint64_t unit) { return (size + unit - 1) / unit; };
  const auto lines = [&](std::uint64_t size) { return whole(size, kLineSize) * kLineSize; };
  block_count = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, whole(count * kFilterBitsPerRow, kBlockBits)));
  bucket_count = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, whole(count, kRowsPerBucket)));
  filter_offset = lines(kRowsOffset + count * shape.row_size());
  directory_offset = filter_offset + block_count * kLineSize;
  file_size = directory_offset + lines((bucket_count + std::uint64_t{1}) * sizeof(std::uint32_t));
}

TableFile::TableFile(std::string path, Mode mode) : path_(std::move(path)) {
  const int flags = mode == Mode::read ? O_RDONLY : O_RDWR | O_CREAT;
  do {
    descriptor_ = ::open(path_.c_str(), flags | O_CLOEXEC, 0600);
  } while (descriptor_ < 0 && errno == EINTR);
  struct stat status {};
  if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) {
    const int code = errno;
    if (descriptor_ >= 0) ::close(descriptor_);
    throw TableError(code, path_, std::strerror(code));
  }
  if (S_ISDIR(status.st_mode)) {
    // Some file systems let a directory be opened for reading, and give it a size.
    ::close(descriptor_);
    throw TableError(EISDIR, path_, std::strerror(EISDIR));
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
  device_ = static_cast<std::uint64_t>(status.st_dev);
  inode_ = static_cast<std::uint64_t>(status.st_ino);
}

TableFile::~TableFile() { ::close(descriptor_); }

void TableFile::read(std::uint64_t offset, void* into, std::size_t size) const {
  auto* at = static_cast<char*>(into);
  while (size != 0) {
    const auto got = ::pread(descriptor_, at, std::min(size, kTransferBytesMax), static_cast<off_t>(offset));
    if (got == 0) fail_damaged("it ends early");
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_system();
    at += got;
    offset += static_cast<std::uint64_t>(got);
    size -= static_cast<std::size_t>(got);
  }
}

void TableFile::write(std::uint64_t offset, const void* from, std::size_t size) const {
  const auto* at = static_cast<const char*>(from);
  while (size != 0) {
    const auto put = ::pwrite(descriptor_, at, std::min(size, kTransferBytesMax), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_system();
    at += put;
    offset += static_cast<std::uint64_t>(put);
    size -= static_cast<std::size_t>(put);
  }
}

void TableFile::empty() const {
  if (::ftruncate(descriptor_, 0) != 0) fail_system();
}

// Plain fsync also on macOS: after a power cut a rebuildable file may be found damaged, and is then rebuilt.
void TableFile::sync() const {
  if (::fsync(descriptor_) != 0) fail_system();
}

void TableFile::fail_damaged(const std::string& reason) const {
  throw TableError(0, path_, "not a sound id table: " + reason);
}

void TableFile::fail_system() const {
  const int code = errno;
  throw TableError(code, path_, std::strerror(code));
}

TableRows::TableRows(const std::string& path) : file_(path, TableFile::Mode::read) {
  Header header;
  if (file_.size() < sizeof header) file_.fail_damaged("it is shorter than a header");
  file_.read(0, &header, sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) file_.fail_damaged("it starts with other bytes");
  if (header.version != kVersion) file_.fail_damaged("its version is " + std::to_string(header.version));
  if (header.header_checksum != header_checksum(header)) file_.fail_damaged("its header fails its checksum");
  if (header.count > kRowCountMax) file_.fail_damaged("its row count is too large");
  try {
    shape_ = checked_shape(header.key_size, header.value_size);
  } catch (const std::invalid_argument& error) {
    file_.fail_damaged(error.what());
  }
  count_ = header.count;
  tag_ = header.tag;
  sections_checksum_ = header.sections_checksum;
  layout_ = TableLayout(shape_, count_);
  if (header.rows_offset != kRowsOffset || header.filter_offset != layout_.filter_offset ||
      header.directory_offset != layout_.directory_offset || header.file_size != layout_.file_size ||
      header.block_count != layout_.block_count || header.bucket_count != layout_.bucket_count)
    file_.fail_damaged("its sections do not lie where its row count puts them");
  if (file_.size() != layout_.file_size) file_.fail_damaged("its size is not the one its header gives");
}

void TableRows::read(std::uint64_t first, std::uint64_t last, std::uint8_t* into) const {
  const auto row_size = shape_.row_size();
  file_.read(kRowsOffset + first * row_size, into, (last - first) * row_size);
}

// One pass of find(): the keys in question, where the answers go, and the rows read for them.
struct IdTable::Answers {
  const std::uint8_t* keys;
  std::size_t key_count;
  std::uint8_t* found;
  std::uint8_t* values;
  RowShape shape;
  std::vector<std::uint8_t> window;
  const std::uint8_t* key(std::size_t position) const { return keys + position * shape.key_size; }
  // Looks for one key among `count` rows of the window: the last row that is not above it is the only candidate.
  void answer(std::size_t position, std::uint64_t window_row, std::uint64_t count) {
    const auto row_size = shape.row_size();
    const auto* row = window.data() + window_row * row_size;
    for (; count > 1; count -= count / 2) {
      const auto* middle = row + count / 2 * row_size;
      if (!key_less(key(position), middle, shape.key_size)) row = middle;
    }
    if (count == 0 || std::memcmp(row, key(position), shape.key_size) != 0) return;
    found[position] = 1;
    std::memcpy(values + position * shape.value_size, row + shape.key_size, shape.value_size);
  }
};

IdTable::IdTable(const std::string& path) : rows_(path) { read_sections(); }

// Read and not mapped: a mapped file that another process cuts short kills the reader with SIGBUS.
void IdTable::read_sections() {
  const auto& layout = rows_.layout();
  sections_.reset(new CacheLine[resident_bytes() / kLineSize]);
  rows_.file().read(layout.filter_offset, sections_.get(), resident_bytes());
  Checksum sum;
  sum.add(sections_.get(), resident_bytes());
  if (sum.value() != rows_.sections_checksum()) rows_.file().fail_damaged("its filter or directory fails its checksum");
  directory_ = reinterpret_cast<const std::uint32_t*>(sections_.get() + layout.block_count);
  const auto* end = directory_ + layout.bucket_count;
  if (directory_[0] != 0 || *end != rows_.count() || !std::is_sorted(directory_, end + 1))
    rows_.file().fail_damaged("its directory is out of order");
}

std::uint64_t IdTable::resident_bytes() const { return rows_.layout().file_size - rows_.layout().filter_offset; }

void IdTable::find(Bytes keys, std::uint8_t* found, std::uint8_t* values) const {
  const auto shape = rows_.shape();
  const std::size_t count = keys.size() / shape.key_size;
  std::memset(found, 0, count);
  std::memset(values, 0, count * shape.value_size);
  Answers answers{keys.data(), 0, found, values, shape, {}};
  for (std::size_t done = 0; done < count; done += answers.key_count) {
    answers.keys = keys.data() + done * shape.key_size;
    answers.found = found + done;
    answers.values = values + done * shape.value_size;
    answers.key_count = std::min(kKeysPerPass, count - done);
    auto probes = filter_keys(answers);
    filter_passes_.fetch_add(probes.size(), std::memory_order_relaxed);
    sort_by_top_bits(probes, std::less<>{});
    for (std::size_t at = 0; at < probes.size();) at = answer_window(probes, at, answers);
  }
}

// The keys that the filter lets through, as items.
std::vector<std::uint64_t> IdTable::filter_keys(const Answers& answers) const {
  constexpr std::size_t kAhead = 32;  // enough cache misses in flight to hide most of each other
  const auto block_count = rows_.layout().block_count;
  std::vector<std::uint64_t> probes;
  for (std::size_t first = 0; first < answers.key_count; first += kAhead) {
    const auto last = std::min(answers.key_count, first + kAhead);
    for (auto position = first; position < last; ++position)
      __builtin_prefetch(&sections_[part_of(top_bits(answers.key(position)), block_count)]);
    for (auto position = first; position < last; ++position) {
      const auto* key = answers.key(position);
      const auto top = top_bits(key);
      if (filter_may_hold(sections_[part_of(top, block_count)], key))
        probes.push_back(item_of(top, position));
    }
  }
  return probes;
}

RowRange IdTable::bucket_of(std::uint64_t probe) const {
  const auto bucket = part_of(top_of(probe), rows_.layout().bucket_count);
  return {directory_[bucket], directory_[bucket + 1]};
}

// Reads the bucket of probes[at], and those of the probes behind it that lie near; answers them; returns the next one.
std::size_t IdTable::answer_window(const std::vector<std::uint64_t>& probes, std::size_t at, Answers& answers) const {
  auto window = bucket_of(probes[at]);
  auto stop = at + 1;
  if (window.count() * answers.shape.row_size() > kWindowBytes)
    window = narrowed(window, answers.key(position_of(probes[at])));
  else
    stop = widen(window, probes, stop);
  const auto size = window.count() * answers.shape.row_size();
  if (answers.window.size() < size) answers.window.resize(size);
  rows_.read(window.first, window.last, answers.window.data());
  for (; at < stop; ++at) {
    const auto bucket = bucket_of(probes[at]);
    const RowRange range{std::max(bucket.first, window.first), std::min(bucket.last, window.last)};
    answers.answer(position_of(probes[at]), range.first - window.first, range.count());
  }
  return stop;
}

// Takes the buckets of further probes into `window` while that is cheaper than to read them on their own.
std::size_t IdTable::widen(RowRange& window, const std::vector<std::uint64_t>& probes, std::size_t next) const {
  const auto row_size = rows_.shape().row_size();
  for (; next < probes.size(); ++next) {
    const auto bucket = bucket_of(probes[next]);
    if ((bucket.last - window.first) * row_size > kWindowBytes) break;
    if (bucket.first * row_size > window.last * row_size + kGapBytes) break;
    window.last = bucket.last;
  }
  return next;
}

// The part of an overfull bucket in which `key` can lie: only keys that are not uniform fill one.
RowRange IdTable::narrowed(RowRange range, const std::uint8_t* key) const {
  const auto shape = rows_.shape();
  std::vector<std::uint8_t> row(shape.row_size());
  while (range.count() * shape.row_size() > kGapBytes) {
    const auto middle = range.first + range.count() / 2;
    rows_.read(middle, middle + 1, row.data());
    (key_less(key, row.data(), shape.key_size) ? range.last : range.first) = middle;
  }
  return range;
}

void IdTable::iterate(std::uint64_t first, std::uint64_t last, std::uint8_t* keys, std::uint8_t* values) const {
  const auto shape = rows_.shape();
  const std::uint64_t rows_max = kWindowBytes / shape.row_size();
  std::vector<std::uint8_t> window(std::min(rows_max, last - first) * shape.row_size());
  while (first < last) {
    const auto stop = std::min(last, first + rows_max);
    rows_.read(first, stop, window.data());
    for (const auto* row = window.data(); first < stop; ++first, row += shape.row_size()) {
      std::memcpy(keys, row, shape.key_size);
      std::memcpy(values, row + shape.key_size, shape.value_size);
      keys += shape.key_size;
      values += shape.value_size;
    }
  }
}

}  // namespace ohdiff
