"""Tests of the library on a real GPU: `make gpu`. Most are rows of the matrix in test_matrix.py.

The tests are skipped unless GPUSLICE_GPU is the GPU's index in NVML. test_machinery.py runs them on
a simulated GPU as if it were real.
"""
