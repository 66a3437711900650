// The AVX-512 path of rule g32s2/1: block scans of 16 strips. Twin of find_below in scan_scalar.cpp.
#include "block_list.hpp"
#include "lanes_avx512.hpp"

namespace ohdiff {

#if defined(__x86_64__) && defined(__GNUC__)

namespace {

// Long, because a block costs a warm-up of 64 bytes a strip and one sort. Measured: 2112 6.0, 4160 7.1, 8256 8.4, 16448
// 8.2 GB/s. Not a multiple of 4096, or all strips would share one set of the first-level cache.
constexpr std::size_t strip_size_max = 8256;

struct ListCandidates {
  BlockList& list;
  __m512i threshold;

  OHDIFF_AVX512 bool operator()(const avx512::Hashes& hashes, std::size_t offset) {
    const __m512i least = _mm512_min_epu32(_mm512_min_epu32(hashes.at[0], hashes.at[1]),
                                           _mm512_min_epu32(hashes.at[2], hashes.at[3]));
    if (_mm512_cmplt_epu32_mask(least, threshold) == 0) [[likely]] return true;
    return list_all(hashes, offset);
  }

  OHDIFF_AVX512_ENTRY __attribute__((noinline, cold)) bool list_all(const avx512::Hashes& hashes, std::size_t offset) {
    alignas(64) u32 lane_hashes[avx512::lanes];
    for (std::size_t i = 0; i < 4; ++i) {
      unsigned below = avx512::mask_bits(_mm512_cmplt_epu32_mask(hashes.at[i], threshold));
      _mm512_store_si512(lane_hashes, hashes.at[i]);
      for (; below != 0; below &= below - 1) {
        const auto lane = static_cast<std::size_t>(__builtin_ctz(below));
        if (!list.add(lane, offset + i, lane_hashes[lane])) return false;
      }
    }
    return true;
  }
};

OHDIFF_AVX512_ENTRY BlockScan scan_block(const u8* data, std::size_t from, std::size_t to, const RuleTables& tables,
                                         u32 threshold, Candidate* candidates) {
  const Strips strips = divide(to - from, avx512::lanes, avx512::load_size, strip_size_max);
  BlockList list(candidates, strips, avx512::lanes);
  ListCandidates visit{list, _mm512_set1_epi32(static_cast<int>(threshold))};
  const bool is_whole = avx512::visit_strips(data + from, strips, avx512::load_tables(tables), visit);
  return list.finish(from, is_whole);
}

bool is_runnable() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("popcnt");
}

}  // namespace

constinit const Kernel kernel_avx512 = {"avx512", is_runnable, scan_block, chunk_features_avx512};

#else

constinit const Kernel kernel_avx512 = {"avx512", [] { return false; }, nullptr, nullptr};

#endif

}  // namespace ohdiff
