// What the writer and the readers of an id table share: the file's header and checksum, how keys become numbers, and
// sorting by them. Internal to id_table.cpp and id_table_write.cpp; everything they promise is in id_table.hpp.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "id_table.hpp"

namespace ohdiff::id_table {

static_assert(std::endian::native == std::endian::little, "the file is mapped onto little-endian words");

constexpr char kMagic[8] = {'O', 'H', 'D', 'I', 'D', 'T', 'A', 'B'};
constexpr std::uint32_t kVersion = 1;
// The directory's starts are 32-bit: 4.29 billion rows are 256 TiB of 64 KiB chunks.
constexpr std::uint64_t kRowCountMax = std::numeric_limits<std::uint32_t>::max();
// 12 bits a row and 7 probes in a 512-bit block: 0.41 % false positives with Poisson-filled blocks (8 probes are no
// better and would need more than the 64 bits of one key word). Putze, Sanders, Singler, "Cache-, Hash- and
// Space-Efficient Bloom Filters", 2007.
constexpr std::uint64_t kFilterBitsPerRow = 12;
constexpr int kFilterProbes = 7;

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

inline std::uint64_t header_checksum(const Header& header) {
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
inline std::uint64_t sort_prefix(const std::uint8_t* key) { return __builtin_bswap64(load<std::uint64_t>(key)); }
inline std::uint32_t top_bits(const std::uint8_t* key) { return __builtin_bswap32(load<std::uint32_t>(key)); }

// Maps the top bits of a key to one of `parts` parts of equal width, in key order: buckets, filter blocks and sorting
// bins need not be powers of two (Lemire, "Fast Random Integer Generation in an Interval", 2019).
inline std::uint32_t part_of(std::uint32_t top, std::uint64_t parts) {
  return static_cast<std::uint32_t>((top * parts) >> 32);
}

inline bool key_less(const std::uint8_t* left, const std::uint8_t* right, std::uint32_t key_size) {
  const auto left_prefix = sort_prefix(left), right_prefix = sort_prefix(right);
  return left_prefix != right_prefix ? left_prefix < right_prefix : std::memcmp(left, right, key_size) < 0;
}

inline bool filter_may_hold(const CacheLine& block, const std::uint8_t* key) {
  auto bits = load<std::uint64_t>(key + 8);
  bool held = true;
  for (int probe = 0; probe < kFilterProbes; ++probe, bits >>= 9)
    held &= (block.words[(bits >> 6) & 7] >> (bits & 63)) & 1;
  return held;
}

inline void filter_add(CacheLine& block, const std::uint8_t* key) {
  auto bits = load<std::uint64_t>(key + 8);
  for (int probe = 0; probe < kFilterProbes; ++probe, bits >>= 9)
    block.words[(bits >> 6) & 7] |= std::uint64_t{1} << (bits & 63);
}

// What is sorted, keys to write and keys to look up, is a 64-bit item: (top bits << 32 | position among the keys).
inline std::uint64_t item_of(std::uint32_t top, std::size_t position) { return std::uint64_t{top} << 32 | position; }
inline std::uint32_t top_of(std::uint64_t item) { return static_cast<std::uint32_t>(item >> 32); }
inline std::size_t position_of(std::uint64_t item) { return static_cast<std::uint32_t>(item); }

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

}  // namespace ohdiff::id_table
