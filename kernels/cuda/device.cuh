// What the kernels share: their geometry, warps, and reading a batch's bytes.
// CPU twin: none; the CPU kernels read host memory as it comes. A batch lies in device memory, has any alignment and at
// most 2^31 bytes, so that offsets, also those a tile beyond its end, never wrap around 2^32 by accident.
#pragma once

#include "boundary_rule.hpp"

#ifndef OHDIFF_THREADS
#define OHDIFF_THREADS 128
#endif
#ifndef OHDIFF_PLACE_THREADS
#define OHDIFF_PLACE_THREADS 256
#endif
#ifndef OHDIFF_STRIP
#define OHDIFF_STRIP 512
#endif
#ifndef OHDIFF_SLOTS
#define OHDIFF_SLOTS 128
#endif

namespace ohdiff {

constexpr u32 warp_size = 32;
constexpr u32 all_lanes = 0xFFFFFFFFu;

constexpr u32 threads = OHDIFF_THREADS;
constexpr u32 warps = threads / warp_size;
constexpr u32 place_threads = OHDIFF_PLACE_THREADS;
constexpr u32 strip_size = OHDIFF_STRIP;
constexpr u32 tile_size = threads * strip_size;
constexpr u32 slots_per_tile = OHDIFF_SLOTS;

static_assert(threads % warp_size == 0 && threads >= 32 && threads <= 256);
static_assert(place_threads % warp_size == 0 && place_threads >= 32 && place_threads <= 1024);
static_assert(strip_size % window_size == 0 && strip_size >= window_size && strip_size <= 4096);
static_assert(slots_per_tile >= 1 && slots_per_tile <= 1024);

// A batch, or any readable range of device memory.
struct Bytes {
  const u8* data;
  u32 size;
};

__device__ __forceinline__ u32 lane_of_thread() { return threadIdx.x % warp_size; }
__device__ __forceinline__ u32 warp_of_thread() { return threadIdx.x / warp_size; }

__device__ __forceinline__ u32 smaller(u32 a, u32 b) { return a < b ? a : b; }
__device__ __forceinline__ u32 larger(u32 a, u32 b) { return a > b ? a : b; }

// All lanes of the warp.
__device__ __forceinline__ u32 largest_of_warp(u32 value) {
  for (u32 distance = warp_size / 2; distance != 0; distance /= 2) {
    value = larger(value, __shfl_xor_sync(all_lanes, value, distance));
  }
  return value;
}

__device__ __forceinline__ u64 address_of(const void* pointer) { return reinterpret_cast<u64>(pointer); }

// Whether [offset, offset + count) lies in the range; offsets before its start have wrapped around and do not.
__device__ __forceinline__ bool contains(const Bytes& bytes, u32 offset, u32 count) {
  return offset < bytes.size && bytes.size - offset >= count;
}

// Four bytes as a little-endian word; those outside the range are 0.
__device__ __forceinline__ u32 word_at(const Bytes& bytes, u32 offset) {
  const u8* from = bytes.data + offset;
  if (contains(bytes, offset, 4) && address_of(from) % 4 == 0) return *reinterpret_cast<const u32*>(from);
  u32 word = 0;
#pragma unroll 1  // rare, and at places where code is unrolled already
  for (u32 i = 0; i < 4; ++i) {
    const u32 at = offset + i;  // wraps back into the range where a word straddles its start
    if (at < bytes.size) word |= static_cast<u32>(bytes.data[at]) << (8 * i);
  }
  return word;
}

}  // namespace ohdiff
