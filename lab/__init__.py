"""The lab: a private containerd with the simulated GPUs on it, for the demo and the node tests.

It uses nothing of the machine's own container runtime: programs come from the project's cache,
every path is under one temporary directory, and all of it runs in a mount namespace of its own.
"""
