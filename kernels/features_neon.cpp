// Resemblance features over 4 strips of a chunk with NEON. Twin of chunk_features_scalar: maxima do not depend on the
// order of samples, nor on a sample being seen twice where strips overlap.
#include <algorithm>

#include "lanes_neon.hpp"

#if defined(__aarch64__)

namespace ohdiff {

namespace {

using namespace neon;

constexpr std::size_t strip_size_max = 8208;  // see scan_avx512.cpp

// Compilers turn the loop into three vectors of four features.
void add_sample(u32* features, u32 hash) {
  const u32 value = sample_value(hash);
  for (u32 i = 0; i < feature_count; ++i) {
    features[i] = std::max(features[i], value * feature_factor(i) + feature_offset(i));
  }
}

struct AddSamples {
  u32* features;
  uint32x4_t zero_when_sampled;

  bool operator()(const Hashes& hashes, std::size_t) {
    uint32x4_t least = vdupq_n_u32(sample_mask);
    for (const uint32x4_t& lane_hashes : hashes.at) least = vminq_u32(least, vandq_u32(lane_hashes, zero_when_sampled));
    if (vminvq_u32(least) != 0) [[likely]] return true;
    u32 values[4 * lanes];
    for (std::size_t i = 0; i < 4; ++i) vst1q_u32(values + i * lanes, hashes.at[i]);
    for (const u32 hash : values) {
      if (is_sampled(hash)) add_sample(features, hash);
    }
    return true;
  }
};

void add_bytewise(const u8* data, std::size_t from, std::size_t to, const RuleTables& tables, u32* features) {
  visit_hashes(data, from, to, tables, [features](std::size_t, u32 hash) {
    if (is_sampled(hash)) add_sample(features, hash);
  });
}

}  // namespace

void chunk_features_neon(const u8* data, std::size_t size, const RuleTables& tables, u32* features) {
  if (size < window_size + block_scan_size_min) return chunk_features_scalar(data, size, tables, features);
  std::fill_n(features, feature_count, 0u);
  AddSamples add{features, vdupq_n_u32(sample_mask)};
  add_bytewise(data, window_size - 1, window_size, tables, features);
  const Tables lane_tables = load_tables(tables);
  std::size_t from = window_size;
  while (size - from >= block_scan_size_min) {
    const Strips strips = divide(size - from, lanes, load_size, strip_size_max);
    visit_strips(data + from, strips, lane_tables, add);
    from += block_size(strips, lanes);
  }
  add_bytewise(data, from, size, tables, features);
}

}  // namespace ohdiff

#endif
