// Blocks of numbers as byte planes, optionally as differences from a base, and back. CPU twin: numbers.hpp; transform 4
// (grouped differences) is left to it.
// Grid and block: x is any number of blocks of `threads`, which share the elements of a job; y is the job. Memory, all
// of it on the device: jobs u64[5 * gridDim.y], aligned to 16, each with the addresses of `from`, `to` and `base`, the
// count of elements, and transform | cast << 32; from, to u8[count * width]; base u8[count * width], 4 bytes an element
// under a cast, unused without a transform; these three of any alignment, without overlap. Limits: count < 2^31; a cast
// needs a width of 2; a job with an unknown transform does nothing. Arithmetic wraps at the element's width.
#include "device.cuh"

#define OHDIFF_NUMBER_FUNCTION __device__ __forceinline__
#include "number_codes.hpp"

namespace ohdiff {

using u16 = unsigned short;

// Codes of transforms and casts as they stand in a job, which may hold any other.
__device__ constexpr u32 code_of(NumberTransform transform) { return static_cast<u32>(transform); }
__device__ constexpr u32 code_of(NumberCast cast) { return static_cast<u32>(cast); }

__device__ __forceinline__ u16 cast_of_f32(u32 bits, u32 cast) {
  return static_cast<u16>(cast == code_of(NumberCast::f32_to_bf16) ? bf16_of_f32(bits) : f16_of_f32(bits));
}

constexpr u32 quad_count = 4;  // elements that a thread takes at a time: a whole word of each plane
constexpr u32 words_per_job = 5;

struct Job {
  const u8* from;
  u8* to;
  const u8* base;
  u64 count;
  u32 transform;
  u32 cast;
};

__device__ __forceinline__ Job job_at(const u64* jobs, u32 index) {
  const u64* job = jobs + words_per_job * index;
  return {reinterpret_cast<const u8*>(job[0]), reinterpret_cast<u8*>(job[1]), reinterpret_cast<const u8*>(job[2]),
          job[3], static_cast<u32>(job[4]), static_cast<u32>(job[4] >> 32)};
}

// Neighbouring elements, as they are loaded and stored at once.
template <class Word, u32 count>
struct alignas(count * sizeof(Word) < 16 ? count * sizeof(Word) : 16) Group {
  Word element[count];
};

template <class Word>
using Quad = Group<Word, quad_count>;

// One little-endian element at any address.
template <class Word>
__device__ __forceinline__ Group<Word, 1> load_bytes(const u8* from) {
  Word word = 0;
#pragma unroll
  for (u32 i = 0; i < sizeof(Word); ++i) word |= static_cast<Word>(static_cast<Word>(from[i]) << (8 * i));
  return {{word}};
}

// Either four elements, all of them aligned wherever they lie, or one.
template <class Word, u32 count>
__device__ __forceinline__ Group<Word, count> load_group(const u8* from) {
  if constexpr (count == 1) {
    return load_bytes<Word>(from);
  } else {
    return *reinterpret_cast<const Group<Word, count>*>(from);
  }
}

template <class Word, u32 count>
__device__ __forceinline__ void store_group(const Group<Word, count>& group, u8* to) {
  if constexpr (count == 1) {
#pragma unroll
    for (u32 i = 0; i < sizeof(Word); ++i) to[i] = static_cast<u8>(group.element[0] >> (8 * i));
  } else {
    *reinterpret_cast<Group<Word, count>*>(to) = group;
  }
}

// `plane`: where the first element's byte belongs in the first of planes that are `total` bytes apart.
template <class Word, u32 count>
__device__ __forceinline__ Group<Word, count> load_planes(const u8* plane, u64 total) {
  Group<Word, count> group = {};
#pragma unroll
  for (u32 p = 0; p < sizeof(Word); ++p, plane += total) {
    const Group<u8, count> bytes = load_group<u8, count>(plane);
#pragma unroll
    for (u32 i = 0; i < count; ++i) {
      group.element[i] |= static_cast<Word>(static_cast<Word>(bytes.element[i]) << (8 * p));
    }
  }
  return group;
}

template <class Word, u32 count>
__device__ __forceinline__ void store_planes(const Group<Word, count>& group, u8* plane, u64 total) {
#pragma unroll
  for (u32 p = 0; p < sizeof(Word); ++p, plane += total) {
    Group<u8, count> bytes;
#pragma unroll
    for (u32 i = 0; i < count; ++i) bytes.element[i] = static_cast<u8>(group.element[i] >> (8 * p));
    store_group(bytes, plane);
  }
}

template <class Word, u32 count>
__device__ __forceinline__ Group<Word, count> load_base(const Job& job, u64 first) {
  if constexpr (sizeof(Word) == 2) {
    if (job.cast != code_of(NumberCast::none)) {
      const Group<u32, count> wide = load_group<u32, count>(job.base + first * sizeof(u32));
      Group<Word, count> group;
#pragma unroll
      for (u32 i = 0; i < count; ++i) group.element[i] = cast_of_f32(wide.element[i], job.cast);
      return group;
    }
  }
  return load_group<Word, count>(job.base + first * sizeof(Word));
}

template <class Word, NumberTransform transform, u32 count>
__device__ __forceinline__ void split_group(const Job& job, u64 first) {
  Group<Word, count> group = load_group<Word, count>(job.from + first * sizeof(Word));
  if constexpr (transform != NumberTransform::none) {
    const Group<Word, count> base = load_base<Word, count>(job, first);
#pragma unroll
    for (u32 i = 0; i < count; ++i) group.element[i] = encoded<Word, transform>(group.element[i], base.element[i]);
  }
  store_planes(group, job.to + first, job.count);
}

template <class Word, NumberTransform transform, u32 count>
__device__ __forceinline__ void join_group(const Job& job, u64 first) {
  Group<Word, count> group = load_planes<Word, count>(job.from + first, job.count);
  if constexpr (transform != NumberTransform::none) {
    const Group<Word, count> base = load_base<Word, count>(job, first);
#pragma unroll
    for (u32 i = 0; i < count; ++i) group.element[i] = decoded<Word, transform>(group.element[i], base.element[i]);
  }
  store_group(group, job.to + first * sizeof(Word));
}

// Whether all fours of a job can be loaded and stored at once: elements, base, and every plane.
template <class Word>
__device__ __forceinline__ bool is_aligned(const Job& job, const u8* elements, const u8* planes) {
  const bool is_cast = sizeof(Word) == 2 && job.cast != code_of(NumberCast::none);
  const u64 base_alignment = is_cast ? alignof(Quad<u32>) : alignof(Quad<Word>);
  return address_of(elements) % alignof(Quad<Word>) == 0 && address_of(job.base) % base_alignment == 0 &&
         (address_of(planes) | job.count) % alignof(Quad<u8>) == 0;
}

// Shares a job among all threads of its blocks: visit(first) for each four elements, or for each one.
template <u32 count, class Visit>
__device__ __forceinline__ void visit_groups(const Job& job, Visit visit) {
  const u64 stride = static_cast<u64>(gridDim.x) * threads * count;
#pragma unroll 1
  for (u64 first = (static_cast<u64>(blockIdx.x) * threads + threadIdx.x) * count; first < job.count; first += stride) {
    visit(first);
  }
}

template <class Word, NumberTransform transform>
__device__ __forceinline__ void split(const Job& job) {
  if (is_aligned<Word>(job, job.from, job.to)) {
    visit_groups<quad_count>(job, [&](u64 first) { split_group<Word, transform, quad_count>(job, first); });
  } else {
    visit_groups<1>(job, [&](u64 first) { split_group<Word, transform, 1>(job, first); });
  }
}

template <class Word, NumberTransform transform>
__device__ __forceinline__ void join(const Job& job) {
  if (is_aligned<Word>(job, job.to, job.from)) {
    visit_groups<quad_count>(job, [&](u64 first) { join_group<Word, transform, quad_count>(job, first); });
  } else {
    visit_groups<1>(job, [&](u64 first) { join_group<Word, transform, 1>(job, first); });
  }
}

template <class Word>
__device__ __forceinline__ void split_job(const u64* jobs) {
  const Job job = job_at(jobs, blockIdx.y);
  switch (job.transform) {
    case code_of(NumberTransform::none): return split<Word, NumberTransform::none>(job);
    case code_of(NumberTransform::xor_base): return split<Word, NumberTransform::xor_base>(job);
    case code_of(NumberTransform::float_difference): return split<Word, NumberTransform::float_difference>(job);
    case code_of(NumberTransform::integer_difference): return split<Word, NumberTransform::integer_difference>(job);
  }
}

template <class Word>
__device__ __forceinline__ void join_job(const u64* jobs) {
  const Job job = job_at(jobs, blockIdx.y);
  switch (job.transform) {
    case code_of(NumberTransform::none): return join<Word, NumberTransform::none>(job);
    case code_of(NumberTransform::xor_base): return join<Word, NumberTransform::xor_base>(job);
    case code_of(NumberTransform::float_difference): return join<Word, NumberTransform::float_difference>(job);
    case code_of(NumberTransform::integer_difference): return join<Word, NumberTransform::integer_difference>(job);
  }
}

}  // namespace ohdiff

using namespace ohdiff;

// The number in a name is the width of an element in bytes.
extern "C" __global__ void __launch_bounds__(OHDIFF_THREADS) ohdiff_split_numbers_1(const u64* __restrict__ jobs) {
  split_job<u8>(jobs);
}
extern "C" __global__ void __launch_bounds__(OHDIFF_THREADS) ohdiff_split_numbers_2(const u64* __restrict__ jobs) {
  split_job<u16>(jobs);
}
extern "C" __global__ void __launch_bounds__(OHDIFF_THREADS) ohdiff_split_numbers_4(const u64* __restrict__ jobs) {
  split_job<u32>(jobs);
}
extern "C" __global__ void __launch_bounds__(OHDIFF_THREADS) ohdiff_split_numbers_8(const u64* __restrict__ jobs) {
  split_job<u64>(jobs);
}
extern "C" __global__ void __launch_bounds__(OHDIFF_THREADS) ohdiff_join_numbers_1(const u64* __restrict__ jobs) {
  join_job<u8>(jobs);
}
extern "C" __global__ void __launch_bounds__(OHDIFF_THREADS) ohdiff_join_numbers_2(const u64* __restrict__ jobs) {
  join_job<u16>(jobs);
}
extern "C" __global__ void __launch_bounds__(OHDIFF_THREADS) ohdiff_join_numbers_4(const u64* __restrict__ jobs) {
  join_job<u32>(jobs);
}
extern "C" __global__ void __launch_bounds__(OHDIFF_THREADS) ohdiff_join_numbers_8(const u64* __restrict__ jobs) {
  join_job<u64>(jobs);
}
