// Prefix sums over the threads of one block. CPU twin: none. Sums wrap modulo 2^32; callers add up parts of a batch.
#pragma once

#include "device.cuh"

namespace ohdiff {

constexpr u32 prefix_words = 32;  // a sum for each warp that a block can have

struct Prefix {
  u32 before;  // sum over the threads before this one
  u32 total;   // sum over the block
};

__device__ __forceinline__ u32 sum_through_lane(u32 value) {
  for (u32 distance = 1; distance < warp_size; distance *= 2) {
    const u32 below = __shfl_up_sync(all_lanes, value, distance);
    if (lane_of_thread() >= distance) value += below;
  }
  return value;
}

// All threads of the block; `sums`: prefix_words of shared memory.
template <u32 block_threads>
__device__ __forceinline__ Prefix block_prefix(u32 value, u32* sums) {
  const u32 through = sum_through_lane(value);
  __syncthreads();  // sums of an earlier call have been read
  if (lane_of_thread() == warp_size - 1) sums[warp_of_thread()] = through;
  __syncthreads();
  Prefix prefix = {through - value, 0};
  for (u32 warp = 0; warp < block_threads / warp_size; ++warp) {
    if (warp < warp_of_thread()) prefix.before += sums[warp];
    prefix.total += sums[warp];
  }
  return prefix;
}

// Writes the exclusive prefix sums of value(0), ..., value(count - 1), and their total at [count]. One block of
// place_threads threads; returns the total.
template <class Value>
__device__ __forceinline__ u32 write_prefix_sums(u32 count, Value value, u32* sums, u32* to) {
  u32 total = 0;
  for (u32 first = 0; first < count; first += place_threads) {
    const u32 i = first + threadIdx.x;
    const Prefix prefix = block_prefix<place_threads>(i < count ? value(i) : 0, sums);
    if (i < count) to[i] = total + prefix.before;
    total += prefix.total;
  }
  if (threadIdx.x == 0) to[count] = total;
  return total;
}

}  // namespace ohdiff
