"""A Kubernetes cluster of one node on this machine.

Uses lab.node, the simulated driver and tools; lab.demo, bench and tests use it.
"""
