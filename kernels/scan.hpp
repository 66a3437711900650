// The CPU side of rule g32s2/1: what a kernel offers, which kernels there are, and how whole buffers are cut.
// All pointers are host memory owned by the caller and only read. Nothing here keeps state between calls, allocates
// per chunk, or knows Python. CUDA twins: cuda/candidates.cu, select.cu, features.cu; they give the same.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "boundary_rule.hpp"

namespace ohdiff {

// The keyed tables in the forms that the kernels load.
struct alignas(64) RuleTables {
  u32 low_nibble[16];
  u32 high_nibble[16];
  u32 term[256];
  u32 rotated_term[256];  // rotl16(term): one load instead of two instructions
};

// `words`: 32 keyed words, 16 for the low nibble, then 16 for the high one.
RuleTables make_tables(std::span<const u32, 32> words);

struct Rule {
  CutLimits limits;
  RuleTables tables;
};

// A block with more candidates is dense (periodic data under an unlucky key) and is walked byte by byte instead, so
// that lists stay in the first-level cache whatever the input. The smallest average, 4 KiB, expects 65 a block.
constexpr std::size_t block_candidates_max = 256;

// What one call of a block scan found. Positions from..scanned_to-1 have been judged.
struct BlockScan {
  std::size_t scanned_to;
  std::size_t count;  // candidates written, sorted by offset; 0 when dense
  bool is_dense;
};

// Scans a block of its own choice at the front of [from, to) for hashes below `threshold`.
// Needs from >= window_size, all of data[0, to) readable, and to - from >= block_scan_size_min; writes at most
// block_candidates_max candidates with offsets relative to `from`.
using ScanBlock = BlockScan (*)(const u8* data, std::size_t from, std::size_t to, const RuleTables& tables,
                                u32 threshold, Candidate* candidates);

// Below this many bytes the byte-by-byte walk is as fast as a block scan.
constexpr std::size_t block_scan_size_min = 1024;

// Writes feature_count maxima of the chunk data[0, size).
using ChunkFeatures = void (*)(const u8* data, std::size_t size, const RuleTables& tables, u32* features);

struct Kernel {
  const char* name;
  bool (*is_runnable)();
  ScanBlock scan_block;  // null: cut byte by byte, which skips the minimum size of every chunk
  ChunkFeatures features;
};

// Kernels that this CPU can run, best first; the last is "scalar".
std::vector<const Kernel*> runnable_kernels();

// Null when there is no such kernel or this CPU cannot run it.
const Kernel* find_kernel(std::string_view name);

extern const Kernel kernel_avx512;
extern const Kernel kernel_avx2;
extern const Kernel kernel_neon;
extern const Kernel kernel_scalar;

// The first position in [from, to) with a hash below `threshold`, else `to`. Needs from >= window_size - 1.
std::size_t find_below(const u8* data, std::size_t from, std::size_t to, const RuleTables& tables, u32 threshold);

// Calls visit(position, hash) for every position in [from, to) that has a whole window.
template <class Visit>
void visit_hashes(const u8* data, std::size_t from, std::size_t to, const RuleTables& tables, Visit visit) {
  const std::size_t first = from < window_size - 1 ? window_size - 1 : from;
  if (first >= to) return;
  Gear gear;
  for (std::size_t i = first - (window_size - 1); i < first; ++i) advance(gear, tables.term[data[i]]);
  for (std::size_t i = first; i < to; ++i) visit(i, advance(gear, tables.term[data[i]]));
}

// A chunk's features by one walk; the oracle of the SIMD ones, and their path for short chunks.
void chunk_features_scalar(const u8* data, std::size_t size, const RuleTables& tables, u32* features);

// Cuts one file, or the front of one, from a chunk start on. One object per call; it holds one candidate list.
class SegmentCutter {
 public:
  // `is_last`: data[0, size) ends where the file ends.
  SegmentCutter(const Rule& rule, const Kernel& kernel, const u8* data, std::size_t size, bool is_last);

  // The exclusive end of the next chunk; 0 when no further cut is final.
  std::size_t next();

 private:
  std::size_t find_cut(std::size_t hard_end);
  std::size_t find_cut_bytewise(std::size_t from, std::size_t hard_end) const;
  void scan_block(std::size_t from);
  bool should_walk_bytewise(std::size_t from) const;

  const Rule& rule_;
  const Kernel& kernel_;
  const u8* data_;
  std::size_t size_;
  bool is_last_;
  std::size_t start_ = 0;        // of the chunk to be cut next
  std::size_t scanned_to_ = 0;   // candidates before this position are listed or passed
  std::size_t dense_until_ = 0;  // up to here, listing candidates is not worth it
  std::size_t list_base_ = 0;
  u64 list_count_ = 0;
  u64 list_next_ = 0;
  Candidate list_[block_candidates_max];
};

struct CandidateLists {
  std::vector<u64> positions;
  std::vector<u32> hashes;
};

// Every candidate of data[0, size) as one file, in order: for tests and for comparing engines, not for cutting.
CandidateLists all_candidates(const Rule& rule, const Kernel& kernel, const u8* data, std::size_t size);

// How a block is shared among the lanes of a SIMD register: lane l judges `size` bytes from l * stride on. With
// stride < size neighbours overlap, so that any block fills all lanes and leaves less than a lane's worth of bytes.
struct Strips {
  std::size_t stride;
  std::size_t size;  // a multiple of the bytes that a lane loads at a time
};

constexpr Strips divide(std::size_t available, std::size_t lanes, std::size_t load_size, std::size_t size_max) {
  const std::size_t even_share = (available / lanes + load_size - 1) / load_size * load_size;
  const std::size_t size = even_share < size_max ? even_share : size_max;
  const std::size_t widest = (available - size) / (lanes - 1);
  return {widest < size ? widest : size, size};
}

constexpr std::size_t block_size(Strips strips, std::size_t lanes) { return (lanes - 1) * strips.stride + strips.size; }

}  // namespace ohdiff
