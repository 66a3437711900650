// Which kernels this CPU can run, best first.
#include <array>

#include "scan.hpp"

namespace ohdiff {

namespace {

// Widest first: on every CPU measured, the wider path was the faster one.
constexpr std::array<const Kernel*, 4> kernels_by_preference = {&kernel_avx512, &kernel_avx2, &kernel_neon,
                                                                &kernel_scalar};

}  // namespace

std::vector<const Kernel*> runnable_kernels() {
  std::vector<const Kernel*> runnable;
  for (const Kernel* kernel : kernels_by_preference) {
    if (kernel->is_runnable()) runnable.push_back(kernel);
  }
  return runnable;
}

const Kernel* find_kernel(std::string_view name) {
  for (const Kernel* kernel : kernels_by_preference) {
    if (name == kernel->name) return kernel->is_runnable() ? kernel : nullptr;
  }
  return nullptr;
}

}  // namespace ohdiff
