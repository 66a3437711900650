// numbers.cu on the CPU.
#include "cuda_shim.h"

#include "numbers.cu"

SHIM_KERNEL(ohdiff_split_numbers_1, OHDIFF_THREADS);
SHIM_KERNEL(ohdiff_split_numbers_2, OHDIFF_THREADS);
SHIM_KERNEL(ohdiff_split_numbers_4, OHDIFF_THREADS);
SHIM_KERNEL(ohdiff_split_numbers_8, OHDIFF_THREADS);
SHIM_KERNEL(ohdiff_join_numbers_1, OHDIFF_THREADS);
SHIM_KERNEL(ohdiff_join_numbers_2, OHDIFF_THREADS);
SHIM_KERNEL(ohdiff_join_numbers_4, OHDIFF_THREADS);
SHIM_KERNEL(ohdiff_join_numbers_8, OHDIFF_THREADS);
