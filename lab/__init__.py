"""The lab: a private containerd (node/) or Kubernetes (cluster/) with simulated GPUs, and the demo.

It uses no container runtime or cluster of the machine: programs come from the project's cache, and
run in namespaces and below directories of their own. Demo, tests and benchmarks use it.
"""
