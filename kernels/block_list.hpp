// Candidates of one block, gathered strip by strip and handed over in order. Shared by the SIMD block scans.
#pragma once

#include <algorithm>

#include "scan.hpp"

namespace ohdiff {

class BlockList {
 public:
  // `candidates`: room for block_candidates_max, owned by the caller.
  BlockList(Candidate* candidates, Strips strips, std::size_t lanes)
      : candidates_(candidates), strips_(strips), last_lane_(lanes - 1) {}

  // `offset` counts from the start of the lane's strip. False when the block has turned out dense.
  bool add(std::size_t lane, std::size_t offset, u32 hash) {
    if (offset >= strips_.stride && lane < last_lane_) return true;  // the next strip reports it
    if (count_ == block_candidates_max) return false;
    candidates_[count_++] = {static_cast<u32>(lane * strips_.stride + offset), hash};
    return true;
  }

  BlockScan finish(std::size_t from, bool is_whole) {
    const std::size_t scanned_to = from + block_size(strips_, last_lane_ + 1);
    if (!is_whole) return {scanned_to, 0, true};
    std::sort(candidates_, candidates_ + count_,
              [](const Candidate& left, const Candidate& right) { return left.offset < right.offset; });
    return {scanned_to, count_, false};
  }

 private:
  Candidate* candidates_;
  Strips strips_;
  std::size_t last_lane_;
  std::size_t count_ = 0;
};

}  // namespace ohdiff
