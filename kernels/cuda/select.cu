// Cuts of every file of a batch from its candidates, and the bounds of all chunks. CPU twin: SegmentCutter of
// select.cpp; what judges is is_cut() of boundary_rule.hpp for both.
// Grid and block: select and gather, a warp for each file, hence ceil(segments / warps) blocks of `threads`; place, one
// block of `place_threads`. Memory, all of it on the device: data u8[size], any alignment, size being the last end;
// terms u32[256]; segment_ends, cut_counts u32[segments]; first, list, unlisted, unlisted_count as candidates.cu left
// them; found u32[size / min_size + segments]; cut_first u32[segments + 1]; bounds u32[chunks + 1]; all but data are
// aligned to 16. Limits: as in candidates.cu, and 128 <= min < avg < max <= 2^30. Hashes wrap modulo 2^32.
#include "prefix.cuh"

namespace ohdiff {

struct Batch {
  const u8* data;
  const u32* terms;
  CutLimits limits;
  const u32* first;
  const Candidate* list;
  u32 list_count;
  const u32* unlisted;
  u32 unlisted_count;
};

// 32 candidates of the list from `index` on, one a lane; beyond the list's end a candidate at no position.
struct Window {
  u32 index;
  u32 offset;
  u32 hash;
};

constexpr u32 no_offset = 0xFFFFFFFFu;

__device__ __forceinline__ Window window_at(const Batch& batch, u32 index) {
  const u32 own = index + lane_of_thread();
  if (own >= batch.list_count) return {index, no_offset, 0};
  return {index, batch.list[own].offset, batch.list[own].hash};
}

// The index of the first candidate at or beyond `offset`.
__device__ __forceinline__ u32 index_of(const Batch& batch, u32 offset) {
  u32 low = batch.first[offset / tile_size];
  u32 high = batch.first[offset / tile_size + 1];
  while (low < high) {
    const u32 middle = low + (high - low) / 2;
    if (batch.list[middle].offset < offset) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Where the chunk that starts at `start` ends by a listed candidate in [from, to); else 0. All lanes together judge 32
// candidates at a time, and keep them for the next chunk.
__device__ __forceinline__ u32 find_listed(const Batch& batch, Window& window, u32 start, u32 from, u32 to) {
  if (__ballot_sync(all_lanes, window.offset >= from) == 0) {
    window = window_at(batch, index_of(batch, from));
  }
  for (;;) {
    const u32 offset = window.offset;
    const bool is_before = offset < to;
    const bool cuts = is_before && offset >= from && is_cut(batch.limits, offset + 1 - start, window.hash);
    const u32 lanes = __ballot_sync(all_lanes, cuts);
    if (lanes != 0) return __shfl_sync(all_lanes, offset, __ffs(lanes) - 1) + 1;
    if (__ballot_sync(all_lanes, !is_before) != 0) return 0;
    window = window_at(batch, window.index + warp_size);
  }
}

// The same for one window's length of bytes, hashed by one lane. Unrolled, this rare path would spill.
__device__ __forceinline__ u32 find_in_bytes(const Batch& batch, u32 start, u32 from, u32 to) {
  Gear gear;
#pragma unroll 1
  for (u32 i = from - (window_size - 1); i < from; ++i) advance(gear, batch.terms[batch.data[i]]);
#pragma unroll 1
  for (u32 i = from; i < to; ++i) {
    const u32 hash = advance(gear, batch.terms[batch.data[i]]);
    if (is_cut(batch.limits, i + 1 - start, hash)) return i + 1;
  }
  return 0;
}

// The same for bytes of a tile whose candidates found no room in the list: each lane hashes 64 positions at a time.
__device__ __forceinline__ u32 find_unlisted(const Batch& batch, u32 start, u32 from, u32 to) {
  for (u32 base = from; base < to; base += warp_size * window_size) {
    const u32 own = base + lane_of_thread() * window_size;
    const u32 end = own < to ? find_in_bytes(batch, start, own, smaller(own + window_size, to)) : 0;
    const u32 lanes = __ballot_sync(all_lanes, end != 0);
    if (lanes != 0) return __shfl_sync(all_lanes, end, __ffs(lanes) - 1);
  }
  return 0;
}

// Walks one file. `next_unlisted` counts the unlisted tiles that lie behind.
struct Walk {
  Window window;
  u32 next_unlisted;
};

__device__ __forceinline__ Walk walk_from(const Batch& batch, u32 start) {
  u32 low = 0;
  u32 high = batch.unlisted_count;
  while (low < high) {
    const u32 middle = low + (high - low) / 2;
    if (batch.unlisted[middle] < start / tile_size) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return {{0, 0, 0}, low};
}

// The next position at which an unlisted tile begins, or has begun; no_offset when there is none.
__device__ __forceinline__ u32 unlisted_start(const Batch& batch, Walk& walk, u32 from) {
  while (walk.next_unlisted < batch.unlisted_count) {
    const u32 start = batch.unlisted[walk.next_unlisted] * tile_size;
    if (start + tile_size > from) return start;
    ++walk.next_unlisted;
  }
  return no_offset;
}

// The exclusive end of the chunk that starts at `start` and ends at `hard_end` at the latest.
__device__ __forceinline__ u32 chunk_end(const Batch& batch, Walk& walk, u32 start, u32 hard_end) {
  u32 from = start + static_cast<u32>(batch.limits.min_size) - 1;
  while (from + 1 < hard_end) {
    const u32 last = hard_end - 1;  // a candidate there cuts where the chunk ends anyway
    const u32 unlisted = unlisted_start(batch, walk, from);
    const bool is_unlisted = unlisted <= from;
    const u32 to = smaller(last, is_unlisted ? unlisted + tile_size : unlisted);
    const u32 end = is_unlisted ? find_unlisted(batch, start, from, to)
                                : find_listed(batch, walk.window, start, from, to);
    if (end != 0) return end;
    from = to;
  }
  return hard_end;
}

// Writes the cuts of the file [start, end), and returns how many.
__device__ __forceinline__ u32 cut_segment(const Batch& batch, u32 start, u32 end, bool is_open, u32* to) {
  const u32 max_size = static_cast<u32>(batch.limits.max_size);
  Walk walk = walk_from(batch, start);
  u32 count = 0;
  while (start < end) {
    const bool reaches_max = end - start >= max_size;
    const u32 hard_end = reaches_max ? start + max_size : end;
    const u32 cut = chunk_end(batch, walk, start, hard_end);
    if (cut == hard_end && !reaches_max && is_open) break;
    if (lane_of_thread() == 0) to[count] = cut;
    ++count;
    start = cut;
  }
  return count;
}

__device__ __forceinline__ u32 segment_of_warp() { return blockIdx.x * warps + warp_of_thread(); }

__device__ __forceinline__ u32 segment_start(const u32* segment_ends, u32 segment) {
  return segment == 0 ? 0 : segment_ends[segment - 1];
}

// Where a file's cuts begin: no file has more than its size / min_size, rounded down, and one.
__device__ __forceinline__ u32 first_found(const u32* segment_ends, u32 segment, u32 min_size) {
  return segment_start(segment_ends, segment) / min_size + segment;
}

}  // namespace ohdiff

using namespace ohdiff;

// Cuts of each file, at the file's own place in `found`. The last file goes on after the batch if `last_is_open`.
extern "C" __global__ void __launch_bounds__(OHDIFF_THREADS)
    ohdiff_select_cuts(const u8* __restrict__ data, const u32* __restrict__ terms,
                       const u32* __restrict__ segment_ends, u32 segments, u32 last_is_open, u32 min_size,
                       u32 avg_size, u32 max_size, u32 threshold_strict, u32 threshold_loose,
                       const u32* __restrict__ first, const Candidate* __restrict__ list,
                       const u32* __restrict__ unlisted, const u32* __restrict__ unlisted_count,
                       u32* __restrict__ found, u32* __restrict__ cut_counts) {
  const u32 segment = segment_of_warp();
  if (segment >= segments) return;
  const u32 tiles = (segment_ends[segments - 1] + tile_size - 1) / tile_size;
  const CutLimits limits = {min_size, avg_size, max_size, threshold_strict, threshold_loose};
  const Batch batch = {data, terms, limits, first, list, first[tiles], unlisted, *unlisted_count};
  const bool is_open = last_is_open != 0 && segment + 1 == segments;
  u32* to = found + first_found(segment_ends, segment, min_size);
  const u32 count = cut_segment(batch, segment_start(segment_ends, segment), segment_ends[segment], is_open, to);
  if (lane_of_thread() == 0) cut_counts[segment] = count;
}

// How many chunks lie before each file, and in all.
extern "C" __global__ void __launch_bounds__(OHDIFF_PLACE_THREADS)
    ohdiff_place_cuts(const u32* __restrict__ cut_counts, u32 segments, u32* __restrict__ cut_first) {
  __shared__ u32 sums[prefix_words];
  write_prefix_sums(segments, [&](u32 segment) { return cut_counts[segment]; }, sums, cut_first);
}

// All cuts back to back, after a 0.
extern "C" __global__ void __launch_bounds__(OHDIFF_THREADS)
    ohdiff_gather_cuts(const u32* __restrict__ segment_ends, u32 segments, u32 min_size,
                       const u32* __restrict__ found, const u32* __restrict__ cut_first, u32* __restrict__ bounds) {
  const u32 segment = segment_of_warp();
  if (segment >= segments) return;
  const u32* from = found + first_found(segment_ends, segment, min_size);
  const u32 count = cut_first[segment + 1] - cut_first[segment];
  u32* to = bounds + cut_first[segment] + 1;
  for (u32 i = lane_of_thread(); i < count; i += warp_size) to[i] = from[i];
  if (segment == 0 && lane_of_thread() == 0) bounds[0] = 0;
}
