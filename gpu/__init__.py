"""What NVML and the driver say of this machine's GPUs, for the node agent and the command line.

Needs nvidia-ml-py alone. A driver in trouble lets a call sleep in the kernel: a caller that must
not wait asks in a process or a thread of its own.
"""
