// Writing and merging sorted id tables: see id_table.hpp for what they are, id_table_layout.hpp for what lies where.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "id_table_layout.hpp"

namespace ohdiff {
namespace {

using namespace id_table;

constexpr char kTooManyRows[] = "an id table holds at most 4294967295 rows";
constexpr std::size_t kStreamBufferBytes = 1 << 20;
constexpr std::size_t kMergeBuffersBytes = 16 << 20;
constexpr std::size_t kMergeBufferBytesMin = 64 << 10;

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
