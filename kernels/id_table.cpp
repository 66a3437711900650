// Writing, merging, opening and searching the sorted id table: see id_table.hpp for what it is and leaves to others.
// Every position in a file follows from the row count, so a damaged header cannot point anywhere: it is refused
// unless its row count explains the file's size to the byte. Integers in the file are little-endian.
#include "id_table.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>

namespace ohdiff {
namespace {

static_assert(std::endian::native == std::endian::little, "the file is mapped onto little-endian words");

constexpr char kMagic[8] = {'O', 'H', 'D', 'I', 'D', 'T', 'A', 'B'};
constexpr std::uint32_t kVersion = 1;
// The directory's starts are 32-bit: 4.29 billion rows are 256 TiB of 64 KiB chunks.
constexpr std::uint64_t kRowCountMax = std::numeric_limits<std::uint32_t>::max();
constexpr char kTooManyRows[] = "an id table holds at most 4294967295 rows";
constexpr std::uint64_t kRowsPerBucket = 64;
// 12 bits a row and 7 probes in a 512-bit block: 0.41 % false positives with Poisson-filled blocks (8 probes are no
// better and would need more than the 64 bits of one key word). Putze, Sanders, Singler, "Cache-, Hash- and
// Space-Efficient Bloom Filters", 2007.
constexpr std::uint64_t kFilterBitsPerRow = 12;
constexpr int kFilterProbes = 7;
constexpr std::uint64_t kBlockBits = 512;
constexpr std::size_t kLineSize = sizeof(CacheLine);
// Neighbouring buckets are read together up to a window, over gaps cheaper to copy than a second system call.
constexpr std::uint64_t kWindowBytes = 256 << 10;
constexpr std::uint64_t kGapBytes = 8 << 10;
// Bounds the working memory of one find() to about 17 bytes for each of these keys.
constexpr std::size_t kKeysPerPass = std::size_t{1} << 20;
constexpr std::size_t kStreamBufferBytes = 1 << 20;
constexpr std::size_t kMergeBuffersBytes = 16 << 20;
constexpr std::size_t kMergeBufferBytesMin = 64 << 10;
// macOS refuses a single read or write of 2 GiB and more.
constexpr std::size_t kTransferBytesMax = 256 << 20;

struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t key_size;
  std::uint32_t value_size;
  std::uint32_t reserved;
  std::uint64_t count;
  TableTag tag;
  std::uint64_t rows_offset;
  std::uint64_t filter_offset;
  std::uint64_t directory_offset;
  std::uint64_t file_size;
  std::uint32_t block_count;
  std::uint32_t bucket_count;
  std::uint64_t sections_checksum;  // of the filter and the directory
  std::uint64_t header_checksum;    // of the fields above
};
static_assert(sizeof(Header) == 120);
constexpr std::uint64_t kRowsOffset = sizeof(Header);

// A 64-bit checksum over 8-byte words: each step is a bijection of the state and of the word, so one changed word is
// always seen, and other accidents are missed once in 2^64. In-house because a cache that is rebuilt at the least
// doubt needs neither a dependency nor resistance to an adversary. The multipliers are XXH64's primes.
class Checksum {
 public:
  void add(const void* data, std::size_t size) {
    const auto* at = static_cast<const std::uint8_t*>(data);
    for (const auto* end = at + size; at != end; at += sizeof(std::uint64_t)) {
      std::uint64_t word;
      std::memcpy(&word, at, sizeof word);
      state_ = std::rotl(state_ ^ (word * 0x9E3779B185EBCA87u), 27) * 0xC2B2AE3D27D4EB4Fu + 0x165667B19E3779F9u;
    }
  }
  std::uint64_t value() const { return state_ ^ (state_ >> 32); }

 private:
  std::uint64_t state_ = 0x27D4EB2F165667C5u;
};

std::uint64_t header_checksum(const Header& header) {
  Checksum sum;
  sum.add(&header, offsetof(Header, header_checksum));
  return sum.value();
}

template <class Word>
Word load(const std::uint8_t* at) {
  Word word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

// The key's first bytes as a number that sorts as they do. __builtin_bswap: std::byteswap is C++23.
std::uint64_t sort_prefix(const std::uint8_t* key) { return __builtin_bswap64(load<std::uint64_t>(key)); }
std::uint32_t top_bits(const std::uint8_t* key) { return __builtin_bswap32(load<std::uint32_t>(key)); }

// Maps the top bits of a key to one of `parts` parts of equal width, in key order: buckets, filter blocks and sorting
// bins need not be powers of two (Lemire, "Fast Random Integer Generation in an Interval", 2019).
std::uint32_t part_of(std::uint32_t top, std::uint64_t parts) {
  return static_cast<std::uint32_t>((top * parts) >> 32);
}

bool key_less(const std::uint8_t* left, const std::uint8_t* right, std::uint32_t key_size) {
  const auto left_prefix = sort_prefix(left), right_prefix = sort_prefix(right);
  return left_prefix != right_prefix ? left_prefix < right_prefix : std::memcmp(left, right, key_size) < 0;
}

bool filter_may_hold(const CacheLine& block, const std::uint8_t* key) {
  auto bits = load<std::uint64_t>(key + 8);
  bool held = true;
  for (int probe = 0; probe < kFilterProbes; ++probe, bits >>= 9)
    held &= (block.words[(bits >> 6) & 7] >> (bits & 63)) & 1;
  return held;
}

void filter_add(CacheLine& block, const std::uint8_t* key) {
  auto bits = load<std::uint64_t>(key + 8);
  for (int probe = 0; probe < kFilterProbes; ++probe, bits >>= 9)
    block.words[(bits >> 6) & 7] |= std::uint64_t{1} << (bits & 63);
}

// What is sorted, keys to write and keys to look up, is a 64-bit item: (top bits << 32 | position among the keys).
std::uint64_t item_of(std::uint32_t top, std::size_t position) { return std::uint64_t{top} << 32 | position; }
std::uint32_t top_of(std::uint64_t item) { return static_cast<std::uint32_t>(item >> 32); }
std::size_t position_of(std::uint64_t item) { return static_cast<std::uint32_t>(item); }

// Sorts items by their top bits and then by `less`: uniform top bits drop each item within a few places of its rank,
// so one scatter and many tiny sorts replace most of n log n. Skewed keys are only slower.
template <class Less>
void sort_by_top_bits(std::vector<std::uint64_t>& items, Less less) {
  const std::uint64_t bins = items.size() / 8 + 1;
  const auto bin_of = [bins](std::uint64_t item) { return part_of(top_of(item), bins); };
  std::vector<std::uint32_t> ends(bins + 1);
  for (const auto item : items) ++ends[bin_of(item) + 1];
  for (std::uint64_t bin = 0; bin < bins; ++bin) ends[bin + 1] += ends[bin];
  std::vector<std::uint64_t> sorted(items.size());
  for (const auto item : items) sorted[ends[bin_of(item)]++] = item;  // moves each start on to its end
  std::uint32_t begin = 0;
  for (std::uint64_t bin = 0; bin < bins; begin = ends[bin++])
    std::sort(sorted.begin() + begin, sorted.begin() + ends[bin], less);
  items.swap(sorted);
}

// Gathers small pieces into large writes at growing offsets.
class WriteStream {
 public:
  WriteStream(const TableFile& file, std::uint64_t offset) : file_(file), offset_(offset) {
    buffer_.reserve(kStreamBufferBytes);
  }
  // The returned bytes are to be filled before the next call.
  std::uint8_t* append(std::size_t size) {
    if (buffer_.size() + size > kStreamBufferBytes) flush();
    buffer_.resize(buffer_.size() + size);
    return buffer_.data() + buffer_.size() - size;
  }
  void flush() {
    file_.write(offset_, buffer_.data(), buffer_.size());
    offset_ += buffer_.size();
    buffer_.clear();
  }

 private:
  const TableFile& file_;
  std::uint64_t offset_;
  std::vector<std::uint8_t> buffer_;
};

// The Bloom filter, written block by block as ascending keys leave each block behind.
class FilterWriter {
 public:
  FilterWriter(const TableFile& file, const TableLayout& layout)
      : stream_(file, layout.filter_offset), block_count_(layout.block_count) {}
  void add(const std::uint8_t* key) {
    advance(part_of(top_bits(key), block_count_));
    filter_add(block_, key);
  }
  void finish(Checksum& sum) {
    advance(block_count_);
    stream_.flush();
    sum = sum_;
  }

 private:
  void advance(std::uint32_t number) {
    for (; number_ < number; ++number_, block_ = {}) {
      sum_.add(&block_, sizeof block_);
      std::memcpy(stream_.append(sizeof block_), &block_, sizeof block_);
    }
  }
  WriteStream stream_;
  std::uint32_t block_count_;
  std::uint32_t number_ = 0;
  CacheLine block_{};
  Checksum sum_;
};

// Writes ascending rows, then reads them back once for the filter and the directory: both need the final row count,
// which a merge that drops equal keys knows only at its end.
class TableWriter {
 public:
  TableWriter(const TableFile& file, RowShape shape) : file_(file), shape_(shape), stream_(file, kRowsOffset) {
    file_.empty();
  }
  // Returns the value of the new row to be filled, or null where `key` equals the last one.
  std::uint8_t* append(const std::uint8_t* key) {
    if (count_ != 0 && std::memcmp(last_key_.data(), key, shape_.key_size) == 0) return nullptr;
    if (++count_ > kRowCountMax) throw std::invalid_argument(kTooManyRows);
    std::memcpy(last_key_.data(), key, shape_.key_size);
    auto* row = stream_.append(shape_.row_size());
    std::memcpy(row, key, shape_.key_size);
    return row + shape_.key_size;
  }

  std::uint64_t finish(const TableTag& tag) {
    stream_.flush();
    const TableLayout layout(shape_, count_);
    const auto sum = write_sections(layout);
    Header header{.magic = {}, .version = kVersion, .key_size = shape_.key_size, .value_size = shape_.value_size,
                  .reserved = 0, .count = count_, .tag = tag, .rows_offset = kRowsOffset,
                  .filter_offset = layout.filter_offset, .directory_offset = layout.directory_offset,
                  .file_size = layout.file_size, .block_count = layout.block_count,
                  .bucket_count = layout.bucket_count, .sections_checksum = sum.value(), .header_checksum = 0};
    std::memcpy(header.magic, kMagic, sizeof kMagic);
    header.header_checksum = header_checksum(header);
    file_.write(0, &header, sizeof header);
    file_.sync();
    return count_;
  }

 private:
  Checksum write_sections(const TableLayout& layout) const {
    FilterWriter filter(file_, layout);
    std::vector<std::uint32_t> starts((layout.file_size - layout.directory_offset) / sizeof(std::uint32_t));
    for_each_key([&](const std::uint8_t* key) {
      filter.add(key);
      ++starts[part_of(top_bits(key), layout.bucket_count) + 1];
    });
    for (std::uint32_t bucket = 0; bucket < layout.bucket_count; ++bucket) starts[bucket + 1] += starts[bucket];
    Checksum sum;
    filter.finish(sum);
    sum.add(starts.data(), starts.size() * sizeof starts[0]);
    file_.write(layout.directory_offset, starts.data(), starts.size() * sizeof starts[0]);
    return sum;
  }
  template <class Visit>
  void for_each_key(Visit visit) const {
    const std::size_t row_size = shape_.row_size();
    const std::uint64_t rows_max = kStreamBufferBytes / row_size;
    std::vector<std::uint8_t> rows(rows_max * row_size);
    for (std::uint64_t first = 0; first < count_; first += rows_max) {
      const auto size = std::min(rows_max, count_ - first) * row_size;
      file_.read(kRowsOffset + first * row_size, rows.data(), size);
      for (std::size_t at = 0; at < size; at += row_size) visit(rows.data() + at);
    }
  }

  const TableFile& file_;
  RowShape shape_;
  WriteStream stream_;
  std::uint64_t count_ = 0;
  std::array<std::uint8_t, 32> last_key_{};
};

// One input of a merge: its rows in order, through a buffer of its own.
class RowCursor {
 public:
  RowCursor(const std::string& path, std::size_t buffer_bytes)
      : rows_(path), row_size_(rows_.shape().row_size()), buffer_rows_(buffer_bytes / row_size_) {}
  const TableRows& rows() const { return rows_; }
  const std::uint8_t* row() const { return buffer_.data() + (at_ - first_) * row_size_; }
  // Moves to the first row, then to the next ones; false behind the last.
  bool advance() {
    if (last_ != 0) ++at_;
    if (at_ == rows_.count()) return false;
    if (at_ == last_) refill();
    if (at_ != 0 && !key_less(previous_key_.data(), row(), rows_.shape().key_size))
      rows_.file().fail_damaged("its rows are out of order");
    std::memcpy(previous_key_.data(), row(), rows_.shape().key_size);
    return true;
  }

 private:
  void refill() {
    first_ = at_;
    last_ = std::min(rows_.count(), first_ + buffer_rows_);
    buffer_.resize((last_ - first_) * row_size_);
    rows_.read(first_, last_, buffer_.data());
  }
  TableRows rows_;
  std::size_t row_size_;
  std::uint64_t buffer_rows_;
  std::uint64_t first_ = 0, last_ = 0, at_ = 0;  // the buffered range and the current row
  std::vector<std::uint8_t> buffer_;
  std::array<std::uint8_t, 32> previous_key_{};
};

// The inputs of a merge by their current rows, lowest key first and, of equal keys, the earliest input.
class MergeQueue {
 public:
  MergeQueue(std::vector<std::unique_ptr<RowCursor>>& cursors, std::uint32_t key_size)
      : cursors_(cursors), key_size_(key_size) {
    for (std::uint32_t input = 0; input < cursors_.size(); ++input)
      if (cursors_[input]->advance()) heap_.push_back(entry(input));
    const auto before = [this](const Entry& left, const Entry& right) { return is_before(left, right); };
    std::sort(heap_.begin(), heap_.end(), before);
  }
  bool is_empty() const { return heap_.empty(); }
  std::size_t input() const { return heap_.front().input; }
  const std::uint8_t* row() const { return cursors_[input()]->row(); }
  void advance() {
    const auto input = heap_.front().input;
    if (cursors_[input]->advance()) return replace_top(entry(input));
    const auto last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) replace_top(last);
  }

 private:
  struct Entry {
    std::uint64_t prefix;
    std::uint32_t input;
  };
  Entry entry(std::uint32_t input) const { return {sort_prefix(cursors_[input]->row()), input}; }
  bool is_before(const Entry& left, const Entry& right) const {
    if (left.prefix != right.prefix) return left.prefix < right.prefix;
    const int order = std::memcmp(cursors_[left.input]->row(), cursors_[right.input]->row(), key_size_);
    return order != 0 ? order < 0 : left.input < right.input;
  }
  void replace_top(Entry moved) {
    std::size_t hole = 0;
    for (std::size_t child = 1; child < heap_.size(); child = 2 * hole + 1) {
      if (child + 1 < heap_.size() && is_before(heap_[child + 1], heap_[child])) ++child;
      if (!is_before(heap_[child], moved)) break;
      heap_[hole] = heap_[child];
      hole = child;
    }
    heap_[hole] = moved;
  }

  std::vector<std::unique_ptr<RowCursor>>& cursors_;
  std::uint32_t key_size_;
  std::vector<Entry> heap_;
};

std::uint32_t biased(std::uint32_t word, std::int64_t bias) {
  constexpr std::int64_t kWordMax = std::numeric_limits<std::uint32_t>::max();
  if (bias < -std::int64_t{word} || bias > kWordMax - std::int64_t{word})
    throw std::invalid_argument("a biased first value word does not fit 32 bits");
  return static_cast<std::uint32_t>(word + bias);
}

std::vector<std::unique_ptr<RowCursor>> open_cursors(const std::vector<std::string>& inputs) {
  if (inputs.empty()) throw std::invalid_argument("a merge needs at least one input");
  const auto buffer_bytes = std::clamp(kMergeBuffersBytes / inputs.size(), kMergeBufferBytesMin, kStreamBufferBytes);
  std::vector<std::unique_ptr<RowCursor>> cursors;
  for (const auto& path : inputs) {
    cursors.push_back(std::make_unique<RowCursor>(path, buffer_bytes));
    if (cursors.back()->rows().shape() != cursors.front()->rows().shape())
      throw std::invalid_argument("the inputs of a merge differ in key or value size");
  }
  return cursors;
}

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

std::uint64_t write_id_table(const std::string& path, Bytes keys, Bytes values, RowShape shape, const TableTag& tag) {
  const std::size_t count = keys.size() / shape.key_size;
  if (count > kRowCountMax) throw std::invalid_argument(kTooManyRows);
  const auto key_at = [&](std::uint64_t item) { return keys.data() + position_of(item) * shape.key_size; };
  std::vector<std::uint64_t> order(count);
  for (std::size_t position = 0; position < count; ++position)
    order[position] = item_of(top_bits(keys.data() + position * shape.key_size), position);
  sort_by_top_bits(order, [&](std::uint64_t left, std::uint64_t right) {
    if (top_of(left) != top_of(right)) return left < right;
    const int keys_order = std::memcmp(key_at(left), key_at(right), shape.key_size);
    return keys_order != 0 ? keys_order < 0 : left < right;
  });
  const TableFile file(path, TableFile::Mode::create);
  TableWriter writer(file, shape);
  for (const auto item : order)
    if (auto* value = writer.append(key_at(item)))
      std::memcpy(value, values.data() + position_of(item) * shape.value_size, shape.value_size);
  return writer.finish(tag);
}

std::uint64_t merge_id_tables(const std::vector<std::string>& inputs, const std::string& output,
                              const std::vector<std::int64_t>& biases, const TableTag& tag) {
  if (inputs.size() != biases.size()) throw std::invalid_argument("a merge needs one bias for each input");
  auto cursors = open_cursors(inputs);
  const auto shape = cursors.front()->rows().shape();
  const TableFile file(output, TableFile::Mode::create);
  for (const auto& cursor : cursors)
    if (cursor->rows().file().is_same_file(file)) throw std::invalid_argument("a merge cannot write over its input");
  TableWriter writer(file, shape);
  for (MergeQueue queue(cursors, shape.key_size); !queue.is_empty(); queue.advance()) {
    auto* value = writer.append(queue.row());
    if (value == nullptr) continue;
    std::memcpy(value, queue.row() + shape.key_size, shape.value_size);
    const auto word = biased(load<std::uint32_t>(value), biases[queue.input()]);
    std::memcpy(value, &word, sizeof word);
  }
  return writer.finish(tag);
}

}  // namespace ohdiff
