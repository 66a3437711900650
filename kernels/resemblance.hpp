// Which stored chunk resembles a new one most: a bounded ring of the latest chunks' features, and a table from single
// features to rows of the ring. Every candidate is verified by the number of features that it shares, so that no group
// of features ("super-feature") is needed. A cache of hints: losing it, or any part of it, loses savings and nothing
// else. It can be rebuilt, so its layout has its own version. Nothing here knows what a prefix leads to. CPU only.
// Measured with a million chunks, which take 96 MiB, one thread of a busy machine: adding 1 us a chunk, finding 0.3 us
// where there is something, 0.7 where there is not.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "boundary_rule.hpp"
#include "id_table.hpp"

namespace ohdiff {

constexpr std::size_t kPrefixSize = 16;
// One page of buckets at the least; at the most what the 24 bits of a slot can number.
constexpr std::uint64_t kResemblanceChunksMin = 128;
constexpr std::uint64_t kResemblanceChunksMax = std::uint64_t{1} << 24;

// Of twelve features the first eight lead to a row. Measured (delta bytes of new chunks, MB): two releases of two
// Python packages 9.71 with eight, 9.62 with twelve, 11.78 by super-features (3x4, 4x3, 6x2, first hit wins); a
// database with 2 % of its rows updated 4.55, 4.53, 5.51; a kernel's patch release 1.37, 1.37, 1.56.
constexpr u32 kIndexedFeatures = 8;

// A chunk of the ring: the first bytes of its id, and its features.
struct alignas(64) ResemblanceRow {
  std::uint8_t prefix[kPrefixSize];
  u32 features[feature_count];
};

// The rows that had a feature which hashes here; a slot is tag << 24 | row, and 0 is an empty one.
struct alignas(64) ResemblanceBucket {
  u32 slots[16];
};
static_assert(sizeof(ResemblanceRow) == 64 && sizeof(ResemblanceBucket) == 64);

// Zeroed memory in lines of 64 bytes whose pages come from a file when they are first touched; it knows which were
// changed. Not a mapping of the file: one that another process cuts short, or a full disk, would end this one by
// SIGBUS. A page that cannot be read counts as zeros. Not safe between threads.
class PagedLines {
 public:
  static constexpr std::size_t kPageSize = 4096;
  explicit PagedLines(std::uint64_t line_count);
  ~PagedLines();
  PagedLines(const PagedLines&) = delete;
  PagedLines& operator=(const PagedLines&) = delete;

  // `file`, which must outlive this, holds the lines from `offset` on; nothing was touched yet.
  void load_from(const TableFile& file, std::uint64_t offset);
  template <class Line>
  const Line& look(std::uint64_t line) {
    return *reinterpret_cast<const Line*>(touched(line));
  }
  template <class Line>
  Line& change(std::uint64_t line) {
    auto* found = touched(line);
    pages_[page_of(line)] |= kChanged;
    return *reinterpret_cast<Line*>(found);
  }
  void prefetch(std::uint64_t line) const { __builtin_prefetch(memory_ + line * 64); }
  // Writes the changed pages; they count as changed until `mark_saved`.
  void save(const TableFile& file, std::uint64_t offset) const;
  void mark_saved();
  bool is_changed() const;
  std::uint64_t size() const { return size_; }
  std::uint64_t resident_bytes() const;

 private:
  enum : std::uint8_t { kLoaded = 1, kChanged = 2 };
  static std::size_t page_of(std::uint64_t line) { return line * 64 / kPageSize; }
  std::uint8_t* touched(std::uint64_t line) {
    const auto page = page_of(line);
    if (!(pages_[page] & kLoaded)) [[unlikely]] load(page);
    return memory_ + line * 64;
  }
  void load(std::size_t page);

  std::uint64_t size_;
  std::uint8_t* memory_;
  std::vector<std::uint8_t> pages_;
  const TableFile* file_ = nullptr;
  std::uint64_t offset_ = 0;
};

// The ring and its table in memory. Not safe between threads.
class ResemblanceRing {
 public:
  // capacity: rows, a power of two within the bounds above. added: how many were ever added to what is then loaded.
  explicit ResemblanceRing(std::uint64_t capacity, std::uint64_t added = 0);
  std::uint64_t capacity() const { return capacity_; }
  std::uint64_t added() const { return added_; }
  std::uint64_t chunk_count() const { return added_ < capacity_ ? added_ : capacity_; }
  PagedLines& lines() { return lines_; }

  // The new row takes the place of the oldest one when the ring is full.
  void add(const u32* features, const std::uint8_t* prefix);
  // The row that shares most features, and of several the newest: how many it shares, or 0 when that is below
  // `equal_min`; `prefix` is written only when it is not.
  u32 find(const u32* features, u32 equal_min, std::uint8_t* prefix);
  // Adds the rows of another ring, oldest first; the newest remain when there are too many.
  void add_all(ResemblanceRing& other);

 private:
  struct Key {
    std::uint64_t bucket;
    u32 tag;
  };
  struct Best {
    u32 equal = 0;
    std::uint64_t age = 0;
    std::uint64_t row = 0;
  };
  using Keys = std::array<Key, kIndexedFeatures>;
  Keys keys_of(const u32* features) const;
  std::uint64_t row_line(std::uint64_t row) const { return capacity_ / 2 + row; }
  std::uint64_t row_of(u32 slot) const { return slot & (capacity_ - 1); }
  // Rows newer than this one.
  std::uint64_t age_of(u32 slot) const { return (added_ - 1 - row_of(slot)) & (capacity_ - 1); }
  void forget(std::uint64_t row);
  void index(const u32* features, std::uint64_t row);
  u32& slot_to_replace(ResemblanceBucket& bucket, u32 tag) const;
  // Appends the slots of the key's bucket that have its tag.
  u32* gather(const Key& key, u32* last);
  void consider(u32 slot, const u32* features, Best& best);

  std::uint64_t capacity_;
  std::uint64_t added_;
  PagedLines lines_;  // capacity / 2 buckets, then the rows
};

// A ring that is kept in a file and grows by doubling up to a bound. Safe between threads, which take turns.
// One process may write a file at a time, which the caller sees to; others may read it meanwhile.
class ResemblanceTable {
 public:
  // An empty `path` keeps everything in memory. A file that is missing, damaged, of another version or under another
  // tag is begun anew; it is replaced, never cut short, when there is something to write. Throws TableError.
  ResemblanceTable(std::string path, std::uint64_t chunk_count_max, const TableTag& tag, bool is_writable);

  // Rows of `feature_count` features. Chunks whose features are all 0 are left out, and resemble nothing.
  void add(const u32* features, const std::uint8_t* prefixes, std::size_t count);
  // 16 bytes and one count of equal features a chunk, zeros where nothing shares at least `equal_min`.
  void find(const u32* features, std::size_t count, u32 equal_min, std::uint8_t* prefixes, std::uint8_t* equal_counts);
  // Writes what is new to the file; does nothing in memory or when not writable. Not synced: a torn file is harmless.
  void flush();
  // Forgets what was not flushed. Afterwards all members but this one throw std::invalid_argument.
  void close();

  std::uint64_t chunk_count() const;
  std::uint64_t capacity() const;
  std::uint64_t resident_bytes() const;

 private:
  void open_file();
  ResemblanceRing& rebuild(std::uint64_t capacity);
  void write_anew();
  void write_to(const TableFile& file);
  ResemblanceRing& open_ring() const;

  std::string path_;
  std::uint64_t chunk_count_max_;
  TableTag tag_;
  bool is_writable_;
  mutable std::mutex mutex_;
  std::unique_ptr<TableFile> file_;  // outlives the ring that loads from it
  std::unique_ptr<ResemblanceRing> ring_;
};

}  // namespace ohdiff
