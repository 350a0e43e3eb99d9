"""A simulated NVIDIA driver: libcuda.so.1 and libnvidia-ml.so.1 over a daemon that owns the GPUs.

It behaves as hardware does. A process without a GPU's socket does not have that GPU. All processes
of the host share each GPU's memory. Errors are the driver's own codes; what is not simulated
returns NOT_SUPPORTED. Independent of the library, the node agent and Kubernetes. lab/ runs real
programs (containerd, images) with the simulated GPUs.
"""
