// Which transforms of numbers and casts of their bases there are (SPEC section 6.5); values are those of the format.
// No libc header: shared by g++ or clang++ with nvcc and NVRTC.
#pragma once

namespace ohdiff {

enum class NumberTransform : unsigned char {
  none = 0,
  xor_base = 1,
  float_difference = 2,
  integer_difference = 3,
  grouped_float_difference = 4,  // grouped by the magnitude of the base, so that alike differences lie together
};

enum class NumberCast : unsigned char { none = 0, f32_to_bf16 = 1, f32_to_f16 = 2 };

}  // namespace ohdiff
