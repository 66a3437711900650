"""The engine that runs on a CUDA device, through CuPy, which is imported only when a device is asked for.

device.py is all that touches CuPy; kernels.py launches; lanes.py owns memory and streams; batches.py plans; engine.py
joins them; self_check.py compares them with the CPU; placement.py judges by measured rates where to compute.
compressor.py makes zstd frames of blocks there (nvcomp.py), direct.py reads files straight into it: both are optional.
"""
