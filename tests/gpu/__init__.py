"""The rows of the library's matrix on a real GPU: `make gpu`.

Skipped without GPUSLICE_GPU, the GPU's number as NVML counts. Nothing here knows a simulated
GPU; test_machinery.py shows the same rows one as if it were the machine's own.
"""
