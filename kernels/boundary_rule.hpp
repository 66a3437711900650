// Rule g32s2/1: where a chunk may end, the resemblance features of a chunk, and how cuts are chosen.
// The one source of the rule: compiled into the CPU kernels by g++ or clang++, and into the CUDA kernels by nvcc or
// NVRTC, hence no libc header and no template that NVRTC lacks. All arithmetic on hashes wraps modulo 2^32.
// Reading bytes, SIMD, and buffers belong to the including file.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define OHDIFF_RULE_FUNCTION __host__ __device__ __forceinline__ constexpr
#else
#define OHDIFF_RULE_FUNCTION inline constexpr
#endif

namespace ohdiff {

using u8 = unsigned char;
using u32 = unsigned int;
using u64 = unsigned long long;
static_assert(sizeof(u32) == 4 && sizeof(u64) == 8);

// The gear doubles every second byte and keeps 32 bits, so a hash depends on the last 64 bytes and on nothing else.
constexpr u32 window_size = 64;

// Selection judges no position closer to a chunk's start than this, so every window that it judges lies inside the
// chunk. Cuts then depend on a chunk's own bytes only, and a stream can be cut from any of its cut points on.
constexpr u32 smallest_min_size = 2 * window_size;

OHDIFF_RULE_FUNCTION u32 rotated_by_16(u32 value) { return (value << 16) | (value >> 16); }

// T[b] by simple tabulation over nibbles: 32 words of key serve a 16-entry permute per nibble (SIMD) as well as a
// 256-entry table (scalar, CUDA). `words`: 16 for the low nibble, then 16 for the high one.
OHDIFF_RULE_FUNCTION u32 byte_term(const u32* words, u32 byte) { return words[byte & 15] ^ words[16 + (byte >> 4)]; }

// The hash inside a run of one repeated byte: the fixed point of G = 2 G + T + rotl16(T).
OHDIFF_RULE_FUNCTION u32 run_hash(u32 term) { return 0u - term - rotated_by_16(term); }

// G(i) = 2 G(i-2) + T[b(i)] + rotl16(T[b(i-1)]). Two interleaved chains give a window of 64 bytes from 32-bit lanes
// (chunk sizes spread by sd/mean .33; a 32-byte window gives .40 to .45) and two additions in flight.
struct Gear {
  u32 one_back = 0;   // G(i-1)
  u32 two_back = 0;   // G(i-2)
  u32 last_term = 0;  // T[b(i-1)]
};

OHDIFF_RULE_FUNCTION u32 advance(Gear& gear, u32 term) {
  const u32 hash = 2 * gear.two_back + term + rotated_by_16(gear.last_term);
  gear.two_back = gear.one_back;
  gear.one_back = hash;
  gear.last_term = term;
  return hash;
}

// A position whose hash is below the loose threshold; `offset` counts from a base that the owner of the list keeps.
struct Candidate {
  u32 offset;
  u32 hash;
};

// Sizes in bytes. Normalised chunking, level 2 (FastCDC, Xia et al., USENIX ATC 2016): a strict threshold before the
// average size, a loose one from there on.
struct CutLimits {
  u64 min_size;
  u64 avg_size;
  u64 max_size;
  u32 threshold_strict;
  u32 threshold_loose;
};

OHDIFF_RULE_FUNCTION bool is_cut(const CutLimits& limits, u64 chunk_size, u32 hash) {
  if (chunk_size < limits.min_size) return false;
  return hash < (chunk_size < limits.avg_size ? limits.threshold_strict : limits.threshold_loose);
}

// Walks sorted candidates from `*next` for the chunk that starts at `start`. Returns the exclusive end of the chunk, or
// 0 when no candidate up to `hard_end` cuts it; `*next` is then the first candidate beyond `hard_end`, or `count`.
OHDIFF_RULE_FUNCTION u64 select_cut(const Candidate* candidates, u64 count, u64* next, u64 base, u64 start,
                                    u64 hard_end, const CutLimits& limits) {
  for (; *next < count; ++*next) {
    const u64 end = base + candidates[*next].offset + 1;
    if (end > hard_end) return 0;
    if (end > start && is_cut(limits, end - start, candidates[*next].hash)) {
      ++*next;
      return end;
    }
  }
  return 0;
}

// Resemblance features (content-defined sampling as in Odess, Zou et al., ACM TOS 2023): of 12 linear maps of every
// sampled hash, the maximum over the chunk. Only windows that lie inside the chunk count; a chunk shorter than the
// window, or without any sample, has features 0.
constexpr u32 feature_count = 12;

// Samples one window hash in 128. A candidate's leading zero bits overlap the mask: where cuts fall, samples fall too.
constexpr u32 sample_mask = 0x01FC0000u;
OHDIFF_RULE_FUNCTION bool is_sampled(u32 hash) { return (hash & sample_mask) == 0; }

// xor-shift and multiply before the linear maps: the low bits of a gear hash see only the last few bytes.
OHDIFF_RULE_FUNCTION u32 sample_value(u32 hash) {
  u32 value = hash ^ (hash >> 15);
  value *= 0x2C1B3C6Du;
  return value ^ (value >> 12);
}

OHDIFF_RULE_FUNCTION u32 feature_factor(u32 feature) { return (0x9E3779B1u * (2 * feature + 1)) | 1u; }
OHDIFF_RULE_FUNCTION u32 feature_offset(u32 feature) { return 0x7F4A7C15u * (feature + 1); }

}  // namespace ohdiff
