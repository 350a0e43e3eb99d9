"""One node: simulated GPUs, a private containerd, the node agent, and pods made by the CRI."""
