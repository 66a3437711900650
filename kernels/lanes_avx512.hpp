// Sixteen strips of a block through rule g32s2/1 at once, one per 32-bit lane of AVX-512. Included by the AVX-512
// sources only; functions carry their target, so that no file needs compiler flags of its own.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)

// GCC 12 takes the undefined pass-through operands inside its own intrinsics for uses of uninitialised variables.
#if !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <cstdint>

#include "scan.hpp"

#define OHDIFF_AVX512_ENTRY __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,popcnt")))
#define OHDIFF_AVX512 OHDIFF_AVX512_ENTRY __attribute__((always_inline)) inline

namespace ohdiff {
void chunk_features_avx512(const u8* data, std::size_t size, const RuleTables& tables, u32* features);
}

namespace ohdiff::avx512 {

constexpr std::size_t lanes = 16;
constexpr std::size_t load_size = 64;  // bytes of each strip between two checks for the end: a cache line

// Hardware prefetchers follow few streams and stop at page borders: 10 to 15 % faster with, on data outside the caches.
constexpr std::size_t prefetch_distance = 256;

struct Tables {
  __m512i low_nibble;
  __m512i high_nibble;
};

struct Chains {
  __m512i one_back;
  __m512i two_back;
  __m512i last_term;
};

// The hashes of four successive bytes in every strip.
struct Hashes {
  __m512i at[4];
};

// Spelled out: left to widen a mask itself, GCC 12 has been seen to spill 16 bits of it and to reload 32.
OHDIFF_AVX512 unsigned mask_bits(__mmask16 mask) {
  unsigned bits;
  asm("kmovw %1, %0" : "=r"(bits) : "k"(mask));
  return bits;
}

OHDIFF_AVX512 Tables load_tables(const RuleTables& tables) {
  return {_mm512_load_si512(tables.low_nibble), _mm512_load_si512(tables.high_nibble)};
}

// T of the byte that starts at bit `shift` of each lane; permutes read the low four bits of an index only.
template <unsigned shift>
OHDIFF_AVX512 __m512i term(__m512i bytes, const Tables& tables) {
  const __m512i low = shift == 0 ? bytes : _mm512_srli_epi32(bytes, shift);
  return _mm512_xor_si512(_mm512_permutexvar_epi32(low, tables.low_nibble),
                          _mm512_permutexvar_epi32(_mm512_srli_epi32(bytes, shift + 4), tables.high_nibble));
}

OHDIFF_AVX512 __m512i next_hash(__m512i two_back, __m512i term, __m512i last_term) {
  return _mm512_add_epi32(_mm512_add_epi32(two_back, two_back),
                          _mm512_add_epi32(term, _mm512_rol_epi32(last_term, 16)));
}

OHDIFF_AVX512 Hashes advance_four(Chains& chains, __m512i bytes, const Tables& tables) {
  const __m512i term0 = term<0>(bytes, tables);
  const __m512i term1 = term<8>(bytes, tables);
  const __m512i term2 = term<16>(bytes, tables);
  const __m512i term3 = term<24>(bytes, tables);
  const __m512i hash0 = next_hash(chains.two_back, term0, chains.last_term);
  const __m512i hash1 = next_hash(chains.one_back, term1, term0);
  const __m512i hash2 = next_hash(hash0, term2, term1);
  const __m512i hash3 = next_hash(hash1, term3, term2);
  chains = {hash3, hash2, term3};
  return {{hash0, hash1, hash2, hash3}};
}

// 16 bytes at the same place of strips a, a + 4, a + 8, a + 12.
OHDIFF_AVX512 __m512i load_quarter(const u8* at, std::size_t stride) {
  __m512i rows = _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  rows = _mm512_inserti32x4(rows, _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 4 * stride)), 1);
  rows = _mm512_inserti32x4(rows, _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 8 * stride)), 2);
  return _mm512_inserti32x4(rows, _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 12 * stride)), 3);
}

// Sixteen bytes of every strip as four vectors of one dword per strip; the loads do half of the transposition.
// Lane order: quarter q of a vector holds strips 4q..4q+3.
OHDIFF_AVX512 void load_transposed(const u8* at, std::size_t stride, __m512i (&dwords)[4]) {
  const __m512i rows0 = load_quarter(at, stride);
  const __m512i rows1 = load_quarter(at + stride, stride);
  const __m512i rows2 = load_quarter(at + 2 * stride, stride);
  const __m512i rows3 = load_quarter(at + 3 * stride, stride);
  const __m512i low01 = _mm512_unpacklo_epi32(rows0, rows1);
  const __m512i high01 = _mm512_unpackhi_epi32(rows0, rows1);
  const __m512i low23 = _mm512_unpacklo_epi32(rows2, rows3);
  const __m512i high23 = _mm512_unpackhi_epi32(rows2, rows3);
  dwords[0] = _mm512_unpacklo_epi64(low01, low23);
  dwords[1] = _mm512_unpackhi_epi64(low01, low23);
  dwords[2] = _mm512_unpacklo_epi64(high01, high23);
  dwords[3] = _mm512_unpackhi_epi64(high01, high23);
}

// The strips group, group + 1, .. group + 3, where they will be read soon. An integer address: it may lie past the end.
OHDIFF_AVX512 void prefetch_strips(const u8* at, std::size_t stride, std::size_t group) {
  std::uintptr_t address = reinterpret_cast<std::uintptr_t>(at) + prefetch_distance + group * stride;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i, address += stride) __builtin_prefetch(reinterpret_cast<const void*>(address));
}

OHDIFF_AVX512 Chains warm_up(const u8* first, std::size_t stride, const Tables& tables) {
  Chains chains = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
#pragma GCC unroll 4
  for (std::size_t offset = 0; offset < window_size; offset += 16) {
    __m512i dwords[4];
    load_transposed(first - window_size + offset, stride, dwords);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) advance_four(chains, dwords[i], tables);
  }
  return chains;
}

// Calls visit(hashes, offset): four successive hashes of every strip, the first at `offset` from the strip's start.
// Reads from 64 bytes before `first` on. Stops when visit returns false, and then returns false.
template <class Visit>
OHDIFF_AVX512 bool visit_strips(const u8* first, Strips strips, const Tables& tables, Visit& visit) {
  Chains chains = warm_up(first, strips.stride, tables);
  for (std::size_t offset = 0; offset < strips.size; offset += load_size) {
#pragma GCC unroll 4
    for (std::size_t part = 0; part < load_size; part += 16) {
      prefetch_strips(first + offset, strips.stride, part / 4);
      __m512i dwords[4];
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

}  // namespace ohdiff::avx512

#endif
