// Planes of numbers with AVX-512. Twin of numbers_scalar.cpp, from the same loops.
#include "numbers.hpp"

#if defined(__x86_64__) && defined(__GNUC__)

#if defined(__clang__)
#define OHDIFF_NUMBERS_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define OHDIFF_NUMBERS_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#endif
#include "numbers_loops.hpp"

namespace ohdiff {

namespace {

bool is_runnable() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

}  // namespace

constinit const NumbersKernel numbers_kernel_avx512 = {"avx512", is_runnable, split, join};

}  // namespace ohdiff

#else

namespace ohdiff {

constinit const NumbersKernel numbers_kernel_avx512 = {"avx512", [] { return false; }, nullptr, nullptr};

}  // namespace ohdiff

#endif
