// The AVX2 path of rule g32s2/1: block scans of 8 strips. Twin of find_below in scan_scalar.cpp.
#include "block_list.hpp"
#include "lanes_avx2.hpp"

namespace ohdiff {

#if defined(__x86_64__) && defined(__GNUC__)

namespace {

// See scan_avx512.cpp.
constexpr std::size_t strip_size_max = 8224;

OHDIFF_AVX2 __m256i are_at_most(__m256i hashes, __m256i bound) {
  return _mm256_cmpeq_epi32(_mm256_min_epu32(hashes, bound), hashes);
}

struct ListCandidates {
  BlockList& list;
  __m256i bound;  // threshold - 1: there is no unsigned "less" in AVX2

  OHDIFF_AVX2 bool operator()(const avx2::Hashes& hashes, std::size_t offset) {
    const __m256i least = _mm256_min_epu32(_mm256_min_epu32(hashes.at[0], hashes.at[1]),
                                           _mm256_min_epu32(hashes.at[2], hashes.at[3]));
    const __m256i hits = are_at_most(least, bound);
    if (_mm256_testz_si256(hits, hits)) [[likely]] return true;
    return list_all(hashes, offset);
  }

  OHDIFF_AVX2_ENTRY __attribute__((noinline, cold)) bool list_all(const avx2::Hashes& hashes, std::size_t offset) {
    alignas(32) u32 lane_hashes[avx2::lanes];
    for (std::size_t i = 0; i < 4; ++i) {
      auto hits = static_cast<unsigned>(
          _mm256_movemask_ps(_mm256_castsi256_ps(are_at_most(hashes.at[i], bound))));
      _mm256_store_si256(reinterpret_cast<__m256i*>(lane_hashes), hashes.at[i]);
      for (; hits != 0; hits &= hits - 1) {
        const auto lane = static_cast<std::size_t>(__builtin_ctz(hits));
        if (!list.add(lane, offset + i, lane_hashes[lane])) return false;
      }
    }
    return true;
  }
};

OHDIFF_AVX2_ENTRY BlockScan scan_block(const u8* data, std::size_t from, std::size_t to, const RuleTables& tables,
                                       u32 threshold, Candidate* candidates) {
  const Strips strips = divide(to - from, avx2::lanes, avx2::load_size, strip_size_max);
  BlockList list(candidates, strips, avx2::lanes);
  ListCandidates visit{list, _mm256_set1_epi32(static_cast<int>(threshold - 1))};
  const bool is_whole = avx2::visit_strips(data + from, strips, avx2::load_tables(tables), visit);
  return list.finish(from, is_whole);
}

bool is_runnable() { return __builtin_cpu_supports("avx2"); }

}  // namespace

constinit const Kernel kernel_avx2 = {"avx2", is_runnable, scan_block, chunk_features_avx2};

#else

constinit const Kernel kernel_avx2 = {"avx2", [] { return false; }, nullptr, nullptr};

#endif

}  // namespace ohdiff
