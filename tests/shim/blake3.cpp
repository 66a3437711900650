// blake3.cu on the CPU.
#include "cuda_shim.h"

#include "blake3.cu"

SHIM_KERNEL(ohdiff_hash_leaves, OHDIFF_THREADS);
SHIM_KERNEL(ohdiff_hash_trees, OHDIFF_THREADS);
SHIM_KERNEL(ohdiff_place_leaves, OHDIFF_PLACE_THREADS);
