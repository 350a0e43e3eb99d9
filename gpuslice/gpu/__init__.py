"""Queries to NVML and the driver about this machine's GPUs, for the node agent and the CLI.

Needs only nvidia-ml-py and the contract. If the driver fails, a call may block in the kernel. A
caller that must not block uses a separate process or thread.
"""
