"""A simulated NVIDIA driver: libcuda.so.1 and libnvidia-ml.so.1 over a daemon that owns the GPUs.

Behaves as hardware does, faults included: no GPU without its socket, one pool of memory for all
processes of the host, the driver's own error codes. What it does not simulate returns
NOT_SUPPORTED. Independent of the library, the node agent and Kubernetes; lab/ runs real programs
(containerd, images) around the simulated GPUs.
"""
