"""The rows of the library's matrix on a real card: `make gpu`.

Skipped without GPUSLICE_CARD, the card's number as NVML counts. Nothing here knows a simulated
card; test_machinery.py shows the same rows one as if it were the machine's own.
"""
