"""One node: simulated GPUs, a private containerd, the node agent, and pods created over CRI.

Uses the simulated driver and tools; lab.cluster, lab.demo, bench and tests use it.
"""
