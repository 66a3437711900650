// Four strips of a block through rule g32s2/1 at once, one per 32-bit lane of NEON (aarch64). Included by the NEON
// sources only. The byte planes are those of lanes_avx2.hpp, with tbl for pshufb and zip for unpack.
#pragma once

#if defined(__aarch64__)

#include <arm_neon.h>

#include "scan.hpp"

namespace ohdiff {
void chunk_features_neon(const u8* data, std::size_t size, const RuleTables& tables, u32* features);
}

namespace ohdiff::neon {

constexpr std::size_t lanes = 4;
constexpr std::size_t load_size = 16;  // bytes of each strip that are transposed at a time

struct Tables {
  uint8x16_t low_nibble[4];
  uint8x16_t high_nibble[4];
};

struct Chains {
  uint32x4_t one_back;
  uint32x4_t two_back;
  uint32x4_t last_rotated;  // rotl16 of the last term
};

// The hashes of four successive bytes in every strip.
struct Hashes {
  uint32x4_t at[4];
};

inline uint8x16_t plane(const u32* words, int byte) {
  u8 bytes[16];
  for (int i = 0; i < 16; ++i) bytes[i] = static_cast<u8>(words[i] >> (8 * byte));
  return vld1q_u8(bytes);
}

inline Tables load_tables(const RuleTables& tables) {
  Tables planes;
  for (int byte = 0; byte < 4; ++byte) {
    planes.low_nibble[byte] = plane(tables.low_nibble, byte);
    planes.high_nibble[byte] = plane(tables.high_nibble, byte);
  }
  return planes;
}

inline uint32x4_t next_hash(uint32x4_t two_back, uint32x4_t term, uint32x4_t last_rotated) {
  return vaddq_u32(vaddq_u32(two_back, two_back), vaddq_u32(term, last_rotated));
}

inline uint16x8_t byte_of_terms(const Tables& tables, int byte, uint8x16_t low, uint8x16_t high) {
  return vreinterpretq_u16_u8(
      veorq_u8(vqtbl1q_u8(tables.low_nibble[byte], low), vqtbl1q_u8(tables.high_nibble[byte], high)));
}

inline uint16x8_t zip_low(uint16x8_t even, uint16x8_t odd) {
  return vreinterpretq_u16_u8(vzip1q_u8(vreinterpretq_u8_u16(even), vreinterpretq_u8_u16(odd)));
}

inline uint16x8_t zip_high(uint16x8_t even, uint16x8_t odd) {
  return vreinterpretq_u16_u8(vzip2q_u8(vreinterpretq_u8_u16(even), vreinterpretq_u8_u16(odd)));
}

inline uint32x4_t join_low(uint16x8_t lower, uint16x8_t upper) {
  return vreinterpretq_u32_u16(vzip1q_u16(lower, upper));
}

inline uint32x4_t join_high(uint16x8_t lower, uint16x8_t upper) {
  return vreinterpretq_u32_u16(vzip2q_u16(lower, upper));
}

// `bytes`: four bytes of every strip, sorted by their place (0 0 0 0 1 1 1 1 ...).
inline Hashes advance_four(Chains& chains, uint8x16_t bytes, const Tables& tables) {
  const uint8x16_t low = vandq_u8(bytes, vdupq_n_u8(15));
  const uint8x16_t high = vshrq_n_u8(bytes, 4);
  const uint16x8_t plane0 = byte_of_terms(tables, 0, low, high);
  const uint16x8_t plane1 = byte_of_terms(tables, 1, low, high);
  const uint16x8_t plane2 = byte_of_terms(tables, 2, low, high);
  const uint16x8_t plane3 = byte_of_terms(tables, 3, low, high);
  const uint16x8_t lower01 = zip_low(plane0, plane1);  // low halves of the terms of places 0 and 1
  const uint16x8_t upper01 = zip_low(plane2, plane3);
  const uint16x8_t lower23 = zip_high(plane0, plane1);
  const uint16x8_t upper23 = zip_high(plane2, plane3);
  const uint32x4_t hash0 = next_hash(chains.two_back, join_low(lower01, upper01), chains.last_rotated);
  const uint32x4_t hash1 = next_hash(chains.one_back, join_high(lower01, upper01), join_low(upper01, lower01));
  const uint32x4_t hash2 = next_hash(hash0, join_low(lower23, upper23), join_high(upper01, lower01));
  const uint32x4_t hash3 = next_hash(hash1, join_high(lower23, upper23), join_low(upper23, lower23));
  chains = {hash3, hash2, join_high(upper23, lower23)};
  return {{hash0, hash1, hash2, hash3}};
}

// Sixteen bytes of every strip as four vectors of four bytes per strip, sorted as advance_four wants them.
inline void load_transposed(const u8* at, std::size_t stride, uint8x16_t (&places)[4]) {
  static constexpr u8 by_place_bytes[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  const uint8x16_t by_place = vld1q_u8(by_place_bytes);
  const uint32x4_t rows0 = vreinterpretq_u32_u8(vld1q_u8(at));
  const uint32x4_t rows1 = vreinterpretq_u32_u8(vld1q_u8(at + stride));
  const uint32x4_t rows2 = vreinterpretq_u32_u8(vld1q_u8(at + 2 * stride));
  const uint32x4_t rows3 = vreinterpretq_u32_u8(vld1q_u8(at + 3 * stride));
  const uint64x2_t low01 = vreinterpretq_u64_u32(vzip1q_u32(rows0, rows1));
  const uint64x2_t high01 = vreinterpretq_u64_u32(vzip2q_u32(rows0, rows1));
  const uint64x2_t low23 = vreinterpretq_u64_u32(vzip1q_u32(rows2, rows3));
  const uint64x2_t high23 = vreinterpretq_u64_u32(vzip2q_u32(rows2, rows3));
  places[0] = vqtbl1q_u8(vreinterpretq_u8_u64(vzip1q_u64(low01, low23)), by_place);
  places[1] = vqtbl1q_u8(vreinterpretq_u8_u64(vzip2q_u64(low01, low23)), by_place);
  places[2] = vqtbl1q_u8(vreinterpretq_u8_u64(vzip1q_u64(high01, high23)), by_place);
  places[3] = vqtbl1q_u8(vreinterpretq_u8_u64(vzip2q_u64(high01, high23)), by_place);
}

inline Chains warm_up(const u8* first, std::size_t stride, const Tables& tables) {
  Chains chains = {vdupq_n_u32(0), vdupq_n_u32(0), vdupq_n_u32(0)};
  for (std::size_t offset = 0; offset < window_size; offset += load_size) {
    uint8x16_t places[4];
    load_transposed(first - window_size + offset, stride, places);
    for (int i = 0; i < 4; ++i) advance_four(chains, places[i], tables);
  }
  return chains;
}

// Calls visit(hashes, offset): four successive hashes of every strip, the first at `offset` from the strip's start.
// Reads from 64 bytes before `first` on. Stops when visit returns false, and then returns false.
template <class Visit>
inline bool visit_strips(const u8* first, Strips strips, const Tables& tables, Visit& visit) {
  Chains chains = warm_up(first, strips.stride, tables);
  for (std::size_t offset = 0; offset < strips.size; offset += load_size) {
    uint8x16_t places[4];
    load_transposed(first + offset, strips.stride, places);
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i) {
      const Hashes hashes = advance_four(chains, places[i], tables);
      if (!visit(hashes, offset + 4 * i)) return false;
    }
  }
  return true;
}

}  // namespace ohdiff::neon

#endif
