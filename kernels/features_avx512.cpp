// Resemblance features over 16 strips of a chunk with AVX-512. Twin of chunk_features_scalar: maxima do not depend on
// the order of samples, nor on a sample being seen twice where strips overlap.
#include "lanes_avx512.hpp"

#if defined(__x86_64__) && defined(__GNUC__)

namespace ohdiff {

namespace {

using namespace avx512;

constexpr std::size_t strip_size_max = 8256;  // see scan_avx512.cpp

// Feature j lives in lane j of every vector here.
struct FeatureLanes {
  __m512i factors;
  __m512i offsets;
  __m512i maxima;
};

OHDIFF_AVX512 FeatureLanes start_features() {
  alignas(64) u32 factors[lanes] = {};
  alignas(64) u32 offsets[lanes] = {};
  for (u32 i = 0; i < feature_count; ++i) {
    factors[i] = feature_factor(i);
    offsets[i] = feature_offset(i);
  }
  return {_mm512_load_si512(factors), _mm512_load_si512(offsets), _mm512_setzero_si512()};
}

OHDIFF_AVX512 void add_sample(FeatureLanes& features, u32 hash) {
  const __m512i value = _mm512_set1_epi32(static_cast<int>(sample_value(hash)));
  features.maxima = _mm512_max_epu32(
      features.maxima, _mm512_add_epi32(_mm512_mullo_epi32(value, features.factors), features.offsets));
}

// Gathers sampled hashes without branching on them (40 % of the calls have one), and maps them in bulk.
struct GatherSamples {
  static constexpr std::size_t capacity = 256;

  FeatureLanes features;
  __m512i zero_when_sampled;
  std::size_t count;
  u32 samples[capacity + 4 * lanes];

  OHDIFF_AVX512 bool operator()(const Hashes& hashes, std::size_t) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __mmask16 sampled = _mm512_testn_epi32_mask(hashes.at[i], zero_when_sampled);
      _mm512_storeu_si512(samples + count, _mm512_maskz_compress_epi32(sampled, hashes.at[i]));
      count += static_cast<std::size_t>(__builtin_popcount(mask_bits(sampled)));
    }
    if (count >= capacity) [[unlikely]] map_samples();
    return true;
  }

  OHDIFF_AVX512 void map_samples() {
    for (std::size_t i = 0; i < count; ++i) add_sample(features, samples[i]);
    count = 0;
  }
};

// visit_hashes for a few bytes; a lambda would not inherit this function's target.
OHDIFF_AVX512 void add_bytewise(const u8* data, std::size_t from, std::size_t to, const RuleTables& tables,
                                FeatureLanes& features) {
  Gear gear;
  for (std::size_t i = from - (window_size - 1); i < from; ++i) advance(gear, tables.term[data[i]]);
  for (std::size_t i = from; i < to; ++i) {
    const u32 hash = advance(gear, tables.term[data[i]]);
    if (is_sampled(hash)) add_sample(features, hash);
  }
}

}  // namespace

OHDIFF_AVX512_ENTRY void chunk_features_avx512(const u8* data, std::size_t size, const RuleTables& tables,
                                               u32* features) {
  if (size < window_size + block_scan_size_min) return chunk_features_scalar(data, size, tables, features);
  GatherSamples gather;
  gather.features = start_features();
  gather.zero_when_sampled = _mm512_set1_epi32(static_cast<int>(sample_mask));
  gather.count = 0;
  add_bytewise(data, window_size - 1, window_size, tables, gather.features);
  const Tables lane_tables = load_tables(tables);
  std::size_t from = window_size;
  while (size - from >= block_scan_size_min) {
    const Strips strips = divide(size - from, lanes, load_size, strip_size_max);
    visit_strips(data + from, strips, lane_tables, gather);
    from += block_size(strips, lanes);
  }
  gather.map_samples();
  add_bytewise(data, from, size, tables, gather.features);
  _mm512_mask_storeu_epi32(features, static_cast<__mmask16>((1u << feature_count) - 1), gather.features.maxima);
}

}  // namespace ohdiff

#endif
