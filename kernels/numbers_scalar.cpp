// Planes of numbers with whatever the compiler may use everywhere (SSE2, NEON): the oracle of the wider paths.
#define OHDIFF_NUMBERS_TARGET
#include "numbers_loops.hpp"

namespace ohdiff {

constinit const NumbersKernel numbers_kernel_scalar = {"scalar", [] { return true; }, split, join};

}  // namespace ohdiff
