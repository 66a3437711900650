// The NEON (aarch64) path of rule g32s2/1: block scans of 4 strips. Twin of find_below in scan_scalar.cpp.
#include "block_list.hpp"
#include "lanes_neon.hpp"

namespace ohdiff {

#if defined(__aarch64__)

namespace {

// See scan_avx512.cpp.
constexpr std::size_t strip_size_max = 8208;

struct ListCandidates {
  BlockList& list;
  u32 threshold;

  bool operator()(const neon::Hashes& hashes, std::size_t offset) {
    const uint32x4_t least = vminq_u32(vminq_u32(hashes.at[0], hashes.at[1]), vminq_u32(hashes.at[2], hashes.at[3]));
    if (vminvq_u32(least) >= threshold) [[likely]] return true;
    return list_all(hashes, offset);
  }

  bool list_all(const neon::Hashes& hashes, std::size_t offset) {
    u32 lane_hashes[neon::lanes];
    for (std::size_t i = 0; i < 4; ++i) {
      vst1q_u32(lane_hashes, hashes.at[i]);
      for (std::size_t lane = 0; lane < neon::lanes; ++lane) {
        if (lane_hashes[lane] < threshold && !list.add(lane, offset + i, lane_hashes[lane])) return false;
      }
    }
    return true;
  }
};

BlockScan scan_block(const u8* data, std::size_t from, std::size_t to, const RuleTables& tables, u32 threshold,
                     Candidate* candidates) {
  const Strips strips = divide(to - from, neon::lanes, neon::load_size, strip_size_max);
  BlockList list(candidates, strips, neon::lanes);
  ListCandidates visit{list, threshold};
  const bool is_whole = neon::visit_strips(data + from, strips, neon::load_tables(tables), visit);
  return list.finish(from, is_whole);
}

bool is_runnable() { return true; }

}  // namespace

constinit const Kernel kernel_neon = {"neon", is_runnable, scan_block, chunk_features_neon};

#else

constinit const Kernel kernel_neon = {"neon", [] { return false; }, nullptr, nullptr};

#endif

}  // namespace ohdiff
