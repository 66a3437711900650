// Eight strips of a block through rule g32s2/1 at once, one per 32-bit lane of AVX2. Included by the AVX2 sources
// only; functions carry their target, so that no file needs compiler flags of its own.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#include <cstdint>

#include "scan.hpp"

#define OHDIFF_AVX2_ENTRY __attribute__((target("avx2")))
#define OHDIFF_AVX2 OHDIFF_AVX2_ENTRY __attribute__((always_inline)) inline

namespace ohdiff {
void chunk_features_avx2(const u8* data, std::size_t size, const RuleTables& tables, u32* features);
}

namespace ohdiff::avx2 {

constexpr std::size_t lanes = 8;
constexpr std::size_t load_size = 32;  // bytes of each strip between two checks for the end

// Hardware prefetchers follow few streams and stop at page borders.
constexpr std::size_t prefetch_distance = 256;

// AVX2 has no permute of dwords with 16 entries, but one of bytes: byte q of each term is looked up in a plane of its
// own, and the planes are zipped to dwords. Zipping them rotated by two gives rotl16 of the term for nothing.
struct Tables {
  __m256i low_nibble[4];
  __m256i high_nibble[4];
};

struct Chains {
  __m256i one_back;
  __m256i two_back;
  __m256i last_rotated;  // rotl16 of the last term
};

// The hashes of four successive bytes in every strip.
struct Hashes {
  __m256i at[4];
};

OHDIFF_AVX2 __m256i plane(const u32* words, int byte) {
  alignas(16) u8 bytes[16];
  for (int i = 0; i < 16; ++i) bytes[i] = static_cast<u8>(words[i] >> (8 * byte));
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
}

OHDIFF_AVX2 Tables load_tables(const RuleTables& tables) {
  Tables planes;
  for (int byte = 0; byte < 4; ++byte) {
    planes.low_nibble[byte] = plane(tables.low_nibble, byte);
    planes.high_nibble[byte] = plane(tables.high_nibble, byte);
  }
  return planes;
}

OHDIFF_AVX2 __m256i next_hash(__m256i two_back, __m256i term, __m256i last_rotated) {
  return _mm256_add_epi32(_mm256_add_epi32(two_back, two_back), _mm256_add_epi32(term, last_rotated));
}

OHDIFF_AVX2 __m256i byte_of_terms(const Tables& tables, int byte, __m256i low, __m256i high) {
  return _mm256_xor_si256(_mm256_shuffle_epi8(tables.low_nibble[byte], low),
                          _mm256_shuffle_epi8(tables.high_nibble[byte], high));
}

// `bytes`: four bytes of every strip, already sorted within each half by their place (0 0 0 0 1 1 1 1 ...).
OHDIFF_AVX2 Hashes advance_four(Chains& chains, __m256i bytes, const Tables& tables) {
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i low = _mm256_and_si256(bytes, nibble);
  const __m256i high = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble);
  const __m256i plane0 = byte_of_terms(tables, 0, low, high);
  const __m256i plane1 = byte_of_terms(tables, 1, low, high);
  const __m256i plane2 = byte_of_terms(tables, 2, low, high);
  const __m256i plane3 = byte_of_terms(tables, 3, low, high);
  const __m256i lower01 = _mm256_unpacklo_epi8(plane0, plane1);  // low halves of the terms of places 0 and 1
  const __m256i upper01 = _mm256_unpacklo_epi8(plane2, plane3);
  const __m256i lower23 = _mm256_unpackhi_epi8(plane0, plane1);
  const __m256i upper23 = _mm256_unpackhi_epi8(plane2, plane3);
  const __m256i hash0 = next_hash(chains.two_back, _mm256_unpacklo_epi16(lower01, upper01), chains.last_rotated);
  const __m256i hash1 =
      next_hash(chains.one_back, _mm256_unpackhi_epi16(lower01, upper01), _mm256_unpacklo_epi16(upper01, lower01));
  const __m256i hash2 =
      next_hash(hash0, _mm256_unpacklo_epi16(lower23, upper23), _mm256_unpackhi_epi16(upper01, lower01));
  const __m256i hash3 =
      next_hash(hash1, _mm256_unpackhi_epi16(lower23, upper23), _mm256_unpacklo_epi16(upper23, lower23));
  chains = {hash3, hash2, _mm256_unpackhi_epi16(upper23, lower23)};
  return {{hash0, hash1, hash2, hash3}};
}

// 16 bytes at the same place of strips a and a + 4.
OHDIFF_AVX2 __m256i load_half(const u8* at, std::size_t stride) {
  const __m128i lower = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  const __m128i upper = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 4 * stride));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(lower), upper, 1);
}

// Sixteen bytes of every strip as four vectors of one dword per strip, sorted as advance_four wants them.
// Lane order: half h of a vector holds strips 4h..4h+3.
OHDIFF_AVX2 void load_transposed(const u8* at, std::size_t stride, __m256i (&dwords)[4]) {
  const __m256i by_place = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,  //
                                            0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m256i rows0 = load_half(at, stride);
  const __m256i rows1 = load_half(at + stride, stride);
  const __m256i rows2 = load_half(at + 2 * stride, stride);
  const __m256i rows3 = load_half(at + 3 * stride, stride);
  const __m256i low01 = _mm256_unpacklo_epi32(rows0, rows1);
  const __m256i high01 = _mm256_unpackhi_epi32(rows0, rows1);
  const __m256i low23 = _mm256_unpacklo_epi32(rows2, rows3);
  const __m256i high23 = _mm256_unpackhi_epi32(rows2, rows3);
  dwords[0] = _mm256_shuffle_epi8(_mm256_unpacklo_epi64(low01, low23), by_place);
  dwords[1] = _mm256_shuffle_epi8(_mm256_unpackhi_epi64(low01, low23), by_place);
  dwords[2] = _mm256_shuffle_epi8(_mm256_unpacklo_epi64(high01, high23), by_place);
  dwords[3] = _mm256_shuffle_epi8(_mm256_unpackhi_epi64(high01, high23), by_place);
}

// The strips group .. group + 3, where they will be read soon. An integer address: it may lie past the end.
OHDIFF_AVX2 void prefetch_strips(const u8* at, std::size_t stride, std::size_t group) {
  std::uintptr_t address = reinterpret_cast<std::uintptr_t>(at) + prefetch_distance + group * stride;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i, address += stride) __builtin_prefetch(reinterpret_cast<const void*>(address));
}

OHDIFF_AVX2 Chains warm_up(const u8* first, std::size_t stride, const Tables& tables) {
  Chains chains = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
  for (std::size_t offset = 0; offset < window_size; offset += 16) {
    __m256i dwords[4];
    load_transposed(first - window_size + offset, stride, dwords);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) advance_four(chains, dwords[i], tables);
  }
  return chains;
}

// Calls visit(hashes, offset): four successive hashes of every strip, the first at `offset` from the strip's start.
// Reads from 64 bytes before `first` on. Stops when visit returns false, and then returns false.
template <class Visit>
OHDIFF_AVX2 bool visit_strips(const u8* first, Strips strips, const Tables& tables, Visit& visit) {
  Chains chains = warm_up(first, strips.stride, tables);
  for (std::size_t offset = 0; offset < strips.size; offset += load_size) {
#pragma GCC unroll 2
    for (std::size_t part = 0; part < load_size; part += 16) {
      prefetch_strips(first + offset, strips.stride, part / 4);
      __m256i dwords[4];
      load_transposed(first + offset + part, strips.stride, dwords);
#pragma GCC unroll 4
      for (std::size_t i = 0; i < 4; ++i) {
        const Hashes hashes = advance_four(chains, dwords[i], tables);
        if (!visit(hashes, offset + part + 4 * i)) return false;
      }
    }
  }
  return true;
}

}  // namespace ohdiff::avx2

#endif
