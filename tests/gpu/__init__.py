"""The rows of the library's matrix on a real GPU: `make gpu`.

They are skipped unless GPUSLICE_GPU has the GPU's number in NVML. They do not depend on the
simulated GPU, but test_machinery.py runs them on one, as if it were real.
"""
