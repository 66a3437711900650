// Numbers as codes: what one element becomes, given its base (SPEC section 6.5). The one source for CPU and CUDA, hence
// no libc header. Floats are taken by their bits; arithmetic wraps at the element's width. No memory is touched here.
//
// The including file defines OHDIFF_NUMBER_FUNCTION: how its copies are compiled. They are internal to it, so that no
// linker can take a copy for another instruction set.
#pragma once

#include "number_transforms.hpp"

namespace ohdiff {

using u32 = unsigned int;

namespace {

template <class Word>
constexpr unsigned bits_of = 8 * sizeof(Word);

template <class Word>
constexpr Word sign_of = static_cast<Word>(Word{1} << (bits_of<Word> - 1));

// Floats as integers of the same order: negative ones reversed and below the others.
template <class Word>
OHDIFF_NUMBER_FUNCTION Word ordered(Word bits) {
  const Word negative = static_cast<Word>(0 - (bits >> (bits_of<Word> - 1)));
  return static_cast<Word>(bits ^ (negative | sign_of<Word>));
}

template <class Word>
OHDIFF_NUMBER_FUNCTION Word unordered(Word value) {
  const Word negative = static_cast<Word>((value >> (bits_of<Word> - 1)) - 1);
  return static_cast<Word>(value ^ (negative | sign_of<Word>));
}

template <class Word>
OHDIFF_NUMBER_FUNCTION Word zigzag(Word difference) {
  const Word negative = static_cast<Word>(0 - (difference >> (bits_of<Word> - 1)));
  return static_cast<Word>(static_cast<Word>(difference << 1) ^ negative);
}

template <class Word>
OHDIFF_NUMBER_FUNCTION Word unzigzag(Word code) {
  return static_cast<Word>((code >> 1) ^ static_cast<Word>(0 - (code & 1)));
}

// Rounds to nearest, ties to even; every NaN becomes 0x7FC0. Like f16_of_f32 in 32 bits, or GCC 12 does not vectorise.
OHDIFF_NUMBER_FUNCTION u32 bf16_of_f32(u32 bits) {
  const u32 rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return (bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : rounded;
}

// Rounds to nearest, ties to even; what is too large becomes infinite, every NaN 0x7E00 with its sign.
OHDIFF_NUMBER_FUNCTION u32 f16_of_f32(u32 bits) {
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

template <class Word, NumberTransform transform>
OHDIFF_NUMBER_FUNCTION Word encoded(Word value, Word base) {
  if constexpr (transform == NumberTransform::none) return value;
  if constexpr (transform == NumberTransform::xor_base) return static_cast<Word>(value ^ base);
  if constexpr (transform == NumberTransform::integer_difference) return zigzag(static_cast<Word>(value - base));
  return zigzag(static_cast<Word>(ordered(value) - ordered(base)));
}

template <class Word, NumberTransform transform>
OHDIFF_NUMBER_FUNCTION Word decoded(Word code, Word base) {
  if constexpr (transform == NumberTransform::none) return code;
  if constexpr (transform == NumberTransform::xor_base) return static_cast<Word>(code ^ base);
  if constexpr (transform == NumberTransform::integer_difference) return static_cast<Word>(unzigzag(code) + base);
  return unordered(static_cast<Word>(unzigzag(code) + ordered(base)));
}

}  // namespace

}  // namespace ohdiff
