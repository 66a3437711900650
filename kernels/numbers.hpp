// Blocks of numbers as byte planes, optionally as differences from a base (SPEC section 6.5): what a kernel offers.
// Elements are little-endian integers of 1, 2, 4 or 8 bytes, of any alignment; arithmetic wraps at their width. Plane p
// holds byte p of every element, and planes lie back to back. All pointers are host memory owned by the caller, and
// none of the ranges may overlap. Nothing here allocates or knows Python.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "number_transforms.hpp"

namespace ohdiff {

// The same as in boundary_rule.hpp, which numbers have no other use for.
using u8 = unsigned char;
using u32 = unsigned int;
using u64 = unsigned long long;
using u16 = unsigned short;
static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8);

struct NumbersJob {
  const u8* from;  // elements to be split, or planes to be joined: count * width bytes
  u8* to;          // as many
  const u8* base;  // count elements, of 4 bytes under a cast; unused without a base
  u8* scratch;     // count * width bytes, aligned to 8, for grouping; unused otherwise
  std::size_t count;
  unsigned width;  // 1, 2, 4 or 8; 2 under a cast
  NumberTransform transform;
  NumberCast cast;
};

struct NumbersKernel {
  const char* name;
  bool (*is_runnable)();
  void (*split)(const NumbersJob& job);
  void (*join)(const NumbersJob& job);
};

// Kernels that this CPU can run, best first; the last is "scalar".
std::vector<const NumbersKernel*> runnable_numbers_kernels();

// Null when there is no such kernel or this CPU cannot run it.
const NumbersKernel* find_numbers_kernel(std::string_view name);

extern const NumbersKernel numbers_kernel_avx512;
extern const NumbersKernel numbers_kernel_avx2;
extern const NumbersKernel numbers_kernel_scalar;

}  // namespace ohdiff
