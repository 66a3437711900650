// Resemblance features over 8 strips of a chunk with AVX2. Twin of chunk_features_scalar: maxima do not depend on the
// order of samples, nor on a sample being seen twice where strips overlap.
#include "lanes_avx2.hpp"

#if defined(__x86_64__) && defined(__GNUC__)

namespace ohdiff {

namespace {

using namespace avx2;

constexpr std::size_t strip_size_max = 8224;  // see scan_avx512.cpp
constexpr std::size_t vectors = 2;            // feature j lives in lane j % 8 of vector j / 8

struct FeatureLanes {
  __m256i factors[vectors];
  __m256i offsets[vectors];
  __m256i maxima[vectors];
};

OHDIFF_AVX2 __m256i load(const u32* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

OHDIFF_AVX2 FeatureLanes start_features() {
  u32 factors[vectors * lanes] = {};
  u32 offsets[vectors * lanes] = {};
  for (u32 i = 0; i < feature_count; ++i) {
    factors[i] = feature_factor(i);
    offsets[i] = feature_offset(i);
  }
  const __m256i zero = _mm256_setzero_si256();
  return {{load(factors), load(factors + lanes)}, {load(offsets), load(offsets + lanes)}, {zero, zero}};
}

OHDIFF_AVX2 void add_sample(FeatureLanes& features, u32 hash) {
  const __m256i value = _mm256_set1_epi32(static_cast<int>(sample_value(hash)));
  for (std::size_t i = 0; i < vectors; ++i) {
    const __m256i mapped = _mm256_add_epi32(_mm256_mullo_epi32(value, features.factors[i]), features.offsets[i]);
    features.maxima[i] = _mm256_max_epu32(features.maxima[i], mapped);
  }
}

struct AddSamples {
  FeatureLanes features;
  __m256i zero_when_sampled;

  OHDIFF_AVX2 unsigned sampled_lanes(__m256i hashes) const {
    const __m256i sampled =
        _mm256_cmpeq_epi32(_mm256_and_si256(hashes, zero_when_sampled), _mm256_setzero_si256());
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(sampled)));
  }

  OHDIFF_AVX2 bool operator()(const Hashes& hashes, std::size_t) {
    unsigned sampled = sampled_lanes(hashes.at[0]) | sampled_lanes(hashes.at[1]) << 8 |
                       sampled_lanes(hashes.at[2]) << 16 | sampled_lanes(hashes.at[3]) << 24;
    if (sampled == 0) [[likely]] return true;
    alignas(32) u32 lane_hashes[4 * lanes];
    for (std::size_t i = 0; i < 4; ++i) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(lane_hashes + i * lanes), hashes.at[i]);
    }
    for (; sampled != 0; sampled &= sampled - 1) add_sample(features, lane_hashes[__builtin_ctz(sampled)]);
    return true;
  }
};

// visit_hashes for a few bytes; a lambda would not inherit this function's target.
OHDIFF_AVX2 void add_bytewise(const u8* data, std::size_t from, std::size_t to, const RuleTables& tables,
                              FeatureLanes& features) {
  Gear gear;
  for (std::size_t i = from - (window_size - 1); i < from; ++i) advance(gear, tables.term[data[i]]);
  for (std::size_t i = from; i < to; ++i) {
    const u32 hash = advance(gear, tables.term[data[i]]);
    if (is_sampled(hash)) add_sample(features, hash);
  }
}

}  // namespace

OHDIFF_AVX2_ENTRY void chunk_features_avx2(const u8* data, std::size_t size, const RuleTables& tables,
                                           u32* features) {
  if (size < window_size + block_scan_size_min) return chunk_features_scalar(data, size, tables, features);
  AddSamples add{start_features(), _mm256_set1_epi32(static_cast<int>(sample_mask))};
  add_bytewise(data, window_size - 1, window_size, tables, add.features);
  const Tables lane_tables = load_tables(tables);
  std::size_t from = window_size;
  while (size - from >= block_scan_size_min) {
    const Strips strips = divide(size - from, lanes, load_size, strip_size_max);
    visit_strips(data + from, strips, lane_tables, add);
    from += block_size(strips, lanes);
  }
  add_bytewise(data, from, size, tables, add.features);
  u32 maxima[vectors * lanes];
  for (std::size_t i = 0; i < vectors; ++i) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(maxima + i * lanes), add.features.maxima[i]);
  }
  for (u32 i = 0; i < feature_count; ++i) features[i] = maxima[i];
}

}  // namespace ohdiff

#endif
