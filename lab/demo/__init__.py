"""`make demo`, `make demo-node`, `make demo-faults`: checks with output.

Uses lab.cluster, lab.node, the simulated driver and tools; only its tests use it.
"""
