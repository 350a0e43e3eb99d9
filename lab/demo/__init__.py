"""`make demo`, `make demo-node`, `make demo-faults`: checks with output.

Uses lab.cluster and lab.node; nothing but its tests uses it.
"""
