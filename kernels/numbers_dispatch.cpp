// Which kernels for numbers this CPU can run, best first.
#include <array>

#include "numbers.hpp"

namespace ohdiff {

namespace {

constexpr std::array<const NumbersKernel*, 3> kernels_by_preference = {&numbers_kernel_avx512, &numbers_kernel_avx2,
                                                                       &numbers_kernel_scalar};

}  // namespace

std::vector<const NumbersKernel*> runnable_numbers_kernels() {
  std::vector<const NumbersKernel*> runnable;
  for (const NumbersKernel* kernel : kernels_by_preference) {
    if (kernel->is_runnable()) runnable.push_back(kernel);
  }
  return runnable;
}

const NumbersKernel* find_numbers_kernel(std::string_view name) {
  for (const NumbersKernel* kernel : kernels_by_preference) {
    if (name == kernel->name) return kernel->is_runnable() ? kernel : nullptr;
  }
  return nullptr;
}

}  // namespace ohdiff
