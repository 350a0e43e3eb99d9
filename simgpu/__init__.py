"""A simulated NVIDIA driver: libcuda.so.1 and libnvidia-ml.so.1 over a daemon that owns the GPUs.

Behaves as hardware does, its faults included: no GPU without its socket, one pool of memory for
all processes of the host, the driver's own error codes. What it does not simulate says
NOT_SUPPORTED. Must not know: the library, the node agent, Kubernetes. `simgpu.lab` beside it runs
real programs (containerd, images) around the simulated GPUs.
"""
