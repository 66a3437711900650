// Runs CUDA kernel source on the CPU: a kernel file is included after this header and compiled as C++.
// Every thread of a block is a fiber; blocks run one after another. A seed decides the order: warps are picked at
// random and each runs until its block must wait for the others, lanes likewise within their warp, so that whatever a
// missing barrier allows to go wrong does go wrong. Any single barrier can be left out at run time, by its file and
// line. Shared memory is filled with rubbish before every block.
// This is what kernels see; runtime.cpp runs them.
// Covers what the kernels use: indices, __shared__, barriers, ballots and shuffles of whole warps, atomics, vector
// types. Not what a device alone shows: its memory model, alignment faults (run under UBSan), and nvcc's own code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict
// One block runs at a time, so a static is what its threads share. The section lets all of them be filled at once.
#define __shared__ static __attribute__((section("shim_shared")))

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace shim {

enum class Collective { sync, ballot, shuffle, shuffle_up, shuffle_xor };

// Where the running thread is.
struct Place {
  dim3 thread, block, block_size, grid_size;
};

extern Place place;

// Waits for the block; `file` and `line` say where.
void sync_block(const char* file, int line);

void sync_warp(const char* file, int line);

// What the lanes of a warp make of their values together.
std::uint64_t collect(Collective collective, std::uint64_t value, unsigned argument);

void register_kernel(const char* name, void (*call)(void**), unsigned block_size);

template <class... Arguments, std::size_t... i>
void call_unpacked(void (*kernel)(Arguments...), void** arguments, std::index_sequence<i...>) {
  kernel(*static_cast<Arguments*>(arguments[i])...);
}

template <class... Arguments>
void call_unpacked(void (*kernel)(Arguments...), void** arguments) {
  call_unpacked(kernel, arguments, std::index_sequence_for<Arguments...>());
}

}  // namespace shim

#define SHIM_KERNEL(name, threads)                                                                         \
  __attribute__((constructor)) static void register_##name() {                                             \
    shim::register_kernel(#name, [](void** arguments) { shim::call_unpacked(name, arguments); }, threads); \
  }                                                                                                        \
  static_assert(true)

#define threadIdx (shim::place.thread)
#define blockIdx (shim::place.block)
#define blockDim (shim::place.block_size)
#define gridDim (shim::place.grid_size)

#define __syncthreads() shim::sync_block(__FILE__, __LINE__)
#define __syncwarp() shim::sync_warp(__FILE__, __LINE__)

inline unsigned __ballot_sync(unsigned, bool value) {
  return static_cast<unsigned>(shim::collect(shim::Collective::ballot, value, 0));
}
inline unsigned __shfl_sync(unsigned, unsigned value, unsigned lane) {
  return static_cast<unsigned>(shim::collect(shim::Collective::shuffle, value, lane));
}
inline unsigned __shfl_up_sync(unsigned, unsigned value, unsigned distance) {
  return static_cast<unsigned>(shim::collect(shim::Collective::shuffle_up, value, distance));
}
inline unsigned __shfl_xor_sync(unsigned, unsigned value, unsigned mask) {
  return static_cast<unsigned>(shim::collect(shim::Collective::shuffle_xor, value, mask));
}
inline int __ffs(unsigned value) { return __builtin_ffs(static_cast<int>(value)); }

inline unsigned atomicAdd(unsigned* at, unsigned value) { return std::exchange(*at, *at + value); }
inline unsigned atomicMax(unsigned* at, unsigned value) { return std::exchange(*at, *at < value ? value : *at); }
