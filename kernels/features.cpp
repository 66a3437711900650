// Resemblance features of a chunk, portable path: the oracle of the SIMD paths, and their path for short chunks.
#include <algorithm>

#include "scan.hpp"

namespace ohdiff {

void chunk_features_scalar(const u8* data, std::size_t size, const RuleTables& tables, u32* features) {
  std::fill_n(features, feature_count, 0u);
  visit_hashes(data, 0, size, tables, [features](std::size_t, u32 hash) {
    if (!is_sampled(hash)) [[likely]] return;
    const u32 value = sample_value(hash);
    for (u32 i = 0; i < feature_count; ++i) {
      features[i] = std::max(features[i], value * feature_factor(i) + feature_offset(i));
    }
  });
}

}  // namespace ohdiff
