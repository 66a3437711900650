// Planes of numbers with AVX2. Twin of numbers_scalar.cpp, from the same loops.
#include "numbers.hpp"

#if defined(__x86_64__) && defined(__GNUC__)

#define OHDIFF_NUMBERS_TARGET __attribute__((target("avx2")))
#include "numbers_loops.hpp"

namespace ohdiff {

namespace {

bool is_runnable() { return __builtin_cpu_supports("avx2"); }

}  // namespace

constinit const NumbersKernel numbers_kernel_avx2 = {"avx2", is_runnable, split, join};

}  // namespace ohdiff

#else

namespace ohdiff {

constinit const NumbersKernel numbers_kernel_avx2 = {"avx2", [] { return false; }, nullptr, nullptr};

}  // namespace ohdiff

#endif
