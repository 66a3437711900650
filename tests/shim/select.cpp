// select.cu on the CPU.
#include "cuda_shim.h"

#include "select.cu"

SHIM_KERNEL(ohdiff_select_cuts, OHDIFF_THREADS);
SHIM_KERNEL(ohdiff_gather_cuts, OHDIFF_THREADS);
SHIM_KERNEL(ohdiff_place_cuts, OHDIFF_PLACE_THREADS);
