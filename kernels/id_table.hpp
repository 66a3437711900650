// An immutable sorted table in one local file: fixed-size, uniformly distributed keys (keyed BLAKE3 ids or
// prefixes of them) to fixed-size values. A cache: it can be rebuilt, so its layout has its own version.
// File: header | rows, sorted by key | blocked Bloom filter | bucket directory. The filter and the directory are
// read into memory and checksummed; rows are read with pread when asked for and are NOT checksummed: the caller
// verifies what a row leads to by its id. Nothing here knows what keys or values mean. CPU only, no CUDA twin.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace ohdiff {

using Bytes = std::span<const std::uint8_t>;
using TableTag = std::array<std::uint8_t, 32>;

// A failed system call (`code` is its errno) or, with code 0, a file that is damaged or no table.
struct TableError : std::runtime_error {
  TableError(int code, std::string path, const std::string& reason)
      : std::runtime_error(reason), code(code), path(std::move(path)) {}
  int code;
  std::string path;
};

struct RowShape {
  std::uint32_t key_size = 0;
  std::uint32_t value_size = 0;
  std::size_t row_size() const { return std::size_t{key_size} + value_size; }
  bool operator==(const RowShape&) const = default;
};

// Throws std::invalid_argument unless keys are 16 or 32 bytes and values a multiple of 4 from 4 to 256.
RowShape checked_shape(std::uint64_t key_size, std::uint64_t value_size);

// Where the sections of a table lie and how they are divided: a function of the shape and the row count alone.
struct TableLayout {
  TableLayout() = default;
  TableLayout(RowShape shape, std::uint64_t count);
  std::uint64_t filter_offset = 0;
  std::uint64_t directory_offset = 0;
  std::uint64_t file_size = 0;
  std::uint32_t block_count = 0;
  std::uint32_t bucket_count = 0;
};

struct RowRange {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::uint64_t count() const { return last - first; }
};

// The unit in which the filter is probed: one 512-bit Bloom block, one cache line on most machines.
struct alignas(64) CacheLine {
  std::uint64_t words[8];
};

// An open file with positioned, complete reads and writes; every failure is a TableError.
class TableFile {
 public:
  enum class Mode { read, create };
  TableFile(std::string path, Mode mode);
  ~TableFile();
  TableFile(const TableFile&) = delete;
  TableFile& operator=(const TableFile&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  bool is_same_file(const TableFile& other) const { return device_ == other.device_ && inode_ == other.inode_; }
  void read(std::uint64_t offset, void* into, std::size_t size) const;
  void write(std::uint64_t offset, const void* from, std::size_t size) const;
  void empty() const;
  void sync() const;
  [[noreturn]] void fail_damaged(const std::string& reason) const;
  [[noreturn]] void fail_system() const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
  std::uint64_t device_ = 0;
  std::uint64_t inode_ = 0;
};

// A table's file and its checked header: enough to stream rows; the filter and directory are left unread.
class TableRows {
 public:
  explicit TableRows(const std::string& path);
  const TableFile& file() const { return file_; }
  RowShape shape() const { return shape_; }
  std::uint64_t count() const { return count_; }
  const TableTag& tag() const { return tag_; }
  const TableLayout& layout() const { return layout_; }
  std::uint64_t sections_checksum() const { return sections_checksum_; }
  // Reads rows [first, last) as they lie in the file, key before value, into `into`.
  void read(std::uint64_t first, std::uint64_t last, std::uint8_t* into) const;

 private:
  TableFile file_;
  RowShape shape_;
  std::uint64_t count_ = 0;
  TableTag tag_{};
  TableLayout layout_;
  std::uint64_t sections_checksum_ = 0;
};

// Look-ups. Immutable after construction: any number of threads may call the const members at once.
class IdTable {
 public:
  explicit IdTable(const std::string& path);
  const TableRows& rows() const { return rows_; }
  std::uint64_t resident_bytes() const;
  // How many keys the filter has let through since opening: those found, and its false positives.
  std::uint64_t filter_pass_count() const { return filter_passes_.load(std::memory_order_relaxed); }
  // found: one byte a key, 0 or 1. values: value_size bytes a key, zeros where it is absent. Both are overwritten.
  void find(Bytes keys, std::uint8_t* found, std::uint8_t* values) const;
  void iterate(std::uint64_t first, std::uint64_t last, std::uint8_t* keys, std::uint8_t* values) const;

 private:
  struct Answers;
  void read_sections();
  std::vector<std::uint64_t> filter_keys(const Answers& answers) const;
  std::size_t answer_window(const std::vector<std::uint64_t>& probes, std::size_t at, Answers& answers) const;
  RowRange bucket_of(std::uint64_t probe) const;
  std::size_t widen(RowRange& window, const std::vector<std::uint64_t>& probes, std::size_t next) const;
  RowRange narrowed(RowRange range, const std::uint8_t* key) const;

  TableRows rows_;
  std::unique_ptr<CacheLine[]> sections_;  // the filter's blocks, then the directory
  const std::uint32_t* directory_ = nullptr;
  mutable std::atomic<std::uint64_t> filter_passes_{0};
};

// Writes the rows to `path`, an earlier file there is overwritten in place; the first of equal keys is kept.
// Returns the number of rows. After an exception the file is incomplete, and opening it is refused.
std::uint64_t write_id_table(const std::string& path, Bytes keys, Bytes values, RowShape shape, const TableTag& tag);

// Merges tables of one shape into `output`; of equal keys the row of the earliest input is kept. biases[i] is added
// to the first little-endian 32-bit word of each value of input i. Memory: the read buffers (16 MiB, or 64 KiB an
// input when there are more than 256) and 4 bytes for each 64 rows.
std::uint64_t merge_id_tables(const std::vector<std::string>& inputs, const std::string& output,
                              const std::vector<std::int64_t>& biases, const TableTag& tag);

}  // namespace ohdiff
