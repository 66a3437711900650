// Resemblance features of chunks: twelve maxima over sampled window hashes. CPU twin: chunk_features_scalar().
// Grid and block: a block of `threads` for each chunk. Memory, all of it on the device: data u8[size], any alignment;
// terms u32[256]; starts, ends u32[chunks]; features u32[12 * chunks]; all but data aligned to 16 (starts and ends to
// 4: they may be one array, a word apart). Limits: starts[i] <= ends[i] <= size <= 2^31. Hashes and maps wrap modulo
// 2^32. Maxima do not depend on the order of their arguments, hence not on that of threads.
#include "strips.cuh"

namespace ohdiff {

// Shorter strips than for candidates: a chunk of 32 KiB then keeps four warps busy, for a quarter more warm-up.
constexpr u32 feature_strip = 256;

struct Maxima {
  u32 value[feature_count];
};

__device__ __forceinline__ void take_sample(Maxima& maxima, u32 hash) {
  const u32 sample = sample_value(hash);
#pragma unroll
  for (u32 i = 0; i < feature_count; ++i) {
    maxima.value[i] = larger(maxima.value[i], sample * feature_factor(i) + feature_offset(i));
  }
}

// Samples of the windows that end in [from, to).
__device__ __forceinline__ void take_samples(Maxima& maxima, const HashQuad& quad, u32 from, u32 to) {
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    const u32 offset = quad.offset + i;
    if (is_sampled(quad.hash[i]) && offset >= from && offset < to) take_sample(maxima, quad.hash[i]);
  }
}

__device__ __forceinline__ Maxima maxima_of_thread(const Bytes& bytes, const u32* terms, u32 start, u32 end,
                                                   u32* rows) {
  Maxima maxima = {};
  const u32 from = start + (window_size - 1);
  auto visit = [&](const HashQuad& quad) { take_samples(maxima, quad, from, end); };
  constexpr u32 warp_bytes = warp_size * feature_strip;
  const u32 aligned = from / 16 * 16;  // so that pieces are loaded by 16 bytes wherever a chunk starts
  for (u32 first = aligned + warp_of_thread() * warp_bytes; first < end; first += warps * warp_bytes) {
    visit_strips<feature_strip>(bytes, first, terms, rows + warp_of_thread() * rows_words, visit);
  }
  return maxima;
}

}  // namespace ohdiff

using namespace ohdiff;

extern "C" __global__ void __launch_bounds__(OHDIFF_THREADS, 1024 / OHDIFF_THREADS)
    ohdiff_find_features(const u8* __restrict__ data, u32 size, const u32* __restrict__ terms,
                         const u32* __restrict__ starts, const u32* __restrict__ ends, u32* __restrict__ features) {
  __shared__ u32 shared_terms[term_count];
  __shared__ u32 rows[warps * rows_words];
  __shared__ u32 largest[feature_count];
  load_terms(terms, shared_terms);
  if (threadIdx.x < feature_count) largest[threadIdx.x] = 0;
  __syncthreads();
  const Maxima maxima =
      maxima_of_thread({data, size}, shared_terms, starts[blockIdx.x], ends[blockIdx.x], rows);
#pragma unroll
  for (u32 i = 0; i < feature_count; ++i) {
    const u32 value = largest_of_warp(maxima.value[i]);
    if (lane_of_thread() == 0) atomicMax(&largest[i], value);
  }
  __syncthreads();
  if (threadIdx.x < feature_count) features[blockIdx.x * feature_count + threadIdx.x] = largest[threadIdx.x];
}
