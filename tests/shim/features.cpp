// features.cu on the CPU.
#include "cuda_shim.h"

#include "features.cu"

SHIM_KERNEL(ohdiff_find_features, OHDIFF_THREADS);
