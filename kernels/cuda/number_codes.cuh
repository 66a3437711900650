// Numbers as codes: what one element becomes, given its base. CPU twin: numbers_loops.hpp, function by function.
// Floats are taken by their bits; arithmetic wraps at the element's width. No memory is touched here.
#pragma once

#include "device.cuh"

namespace ohdiff {

using u16 = unsigned short;

// Values are those of the format (numbers.hpp). Transform 4, grouped differences, is left to the CPU.
constexpr u32 transform_none = 0;
constexpr u32 transform_xor_base = 1;
constexpr u32 transform_float_difference = 2;
constexpr u32 transform_integer_difference = 3;

constexpr u32 cast_none = 0;
constexpr u32 cast_f32_to_bf16 = 1;
constexpr u32 cast_f32_to_f16 = 2;

template <class Word>
constexpr u32 bits_of = 8 * sizeof(Word);

template <class Word>
constexpr Word sign_of = static_cast<Word>(Word{1} << (bits_of<Word> - 1));

// Floats as integers of the same order: negative ones reversed and below the others.
template <class Word>
__device__ __forceinline__ Word ordered(Word bits) {
  const Word negative = static_cast<Word>(0 - (bits >> (bits_of<Word> - 1)));
  return static_cast<Word>(bits ^ (negative | sign_of<Word>));
}

template <class Word>
__device__ __forceinline__ Word unordered(Word value) {
  const Word negative = static_cast<Word>((value >> (bits_of<Word> - 1)) - 1);
  return static_cast<Word>(value ^ (negative | sign_of<Word>));
}

template <class Word>
__device__ __forceinline__ Word zigzag(Word difference) {
  const Word negative = static_cast<Word>(0 - (difference >> (bits_of<Word> - 1)));
  return static_cast<Word>(static_cast<Word>(difference << 1) ^ negative);
}

template <class Word>
__device__ __forceinline__ Word unzigzag(Word code) {
  return static_cast<Word>((code >> 1) ^ static_cast<Word>(0 - (code & 1)));
}

// Rounds to nearest, ties to even; every NaN becomes 0x7FC0.
__device__ __forceinline__ u32 bf16_of_f32(u32 bits) {
  const u32 rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return (bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : rounded;
}

// Rounds to nearest, ties to even; what is too large becomes infinite, every NaN 0x7E00 with its sign.
__device__ __forceinline__ u32 f16_of_f32(u32 bits) {
  const u32 size = bits & 0x7FFFFFFF;
  const u32 normal = (size - 0x38000000 + 0xFFF + ((size >> 13) & 1)) >> 13;
  // Below 2^-14 the significand is shifted to units of 2^-24, by 14 at least; from a shift of 25 on nothing remains.
  const u32 distance = 126 - (size >> 23);
  const u32 below = distance < 14 ? 14 : distance;
  const u32 shift = below > 25 ? 25 : below;
  const u32 significand = (size & 0x7FFFFF) | 0x800000;
  const u32 subnormal = (significand + (1u << (shift - 1)) - 1 + ((significand >> shift) & 1)) >> shift;
  u32 half = size < 0x38800000 ? subnormal : normal;
  half = size >= 0x47800000 ? 0x7C00 : half;
  half = size > 0x7F800000 ? 0x7E00 : half;
  return half | ((bits >> 16) & 0x8000);
}

__device__ __forceinline__ u16 cast_of_f32(u32 bits, u32 cast) {
  return static_cast<u16>(cast == cast_f32_to_bf16 ? bf16_of_f32(bits) : f16_of_f32(bits));
}

template <class Word, u32 transform>
__device__ __forceinline__ Word encoded(Word value, Word base) {
  if constexpr (transform == transform_xor_base) {
    return static_cast<Word>(value ^ base);
  } else if constexpr (transform == transform_integer_difference) {
    return zigzag(static_cast<Word>(value - base));
  } else {
    static_assert(transform == transform_float_difference);
    return zigzag(static_cast<Word>(ordered(value) - ordered(base)));
  }
}

template <class Word, u32 transform>
__device__ __forceinline__ Word decoded(Word code, Word base) {
  if constexpr (transform == transform_xor_base) {
    return static_cast<Word>(code ^ base);
  } else if constexpr (transform == transform_integer_difference) {
    return static_cast<Word>(unzigzag(code) + base);
  } else {
    static_assert(transform == transform_float_difference);
    return unordered(static_cast<Word>(unzigzag(code) + ordered(base)));
  }
}

}  // namespace ohdiff
