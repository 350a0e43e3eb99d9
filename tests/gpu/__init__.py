"""The rows of the library's matrix on a real GPU: `make gpu`.

Skipped without GPUSLICE_GPU, the GPU's number in NVML. Independent of the simulated GPU;
test_machinery.py presents one to the same rows as the machine's own.
"""
