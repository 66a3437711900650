// candidates.cu on the CPU.
#include "cuda_shim.h"

#include "candidates.cu"

SHIM_KERNEL(ohdiff_find_candidates, OHDIFF_THREADS);
SHIM_KERNEL(ohdiff_list_candidates, OHDIFF_THREADS);
SHIM_KERNEL(ohdiff_place_tiles, OHDIFF_PLACE_THREADS);
