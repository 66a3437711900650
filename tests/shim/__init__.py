"""The CUDA kernels of kernels/cuda on the CPU: built from the very sources, launched as a driver would launch them."""
