"""The node agent: adds GPU shares with their limits to pods, through containerd's NRI.

policy/ decides what a container gets, without I/O. containers/ carries these decisions out.
protocol/ implements NRI without I/O, nri/ does its socket I/O, and messages/ has the generated
protobuf classes. host/ reads and writes the node's files, gpu/ queries the driver, and kube/ talks
to the API server. kubelet/ is the device plugin for whole GPUs, and claims/ the plugin for
ResourceClaims. doctor/ checks a node. distributor.py keeps a copy of the library for other
projects. `.importlinter` orders the layers.

gRPC's fork handlers are disabled: they would log a line for each child, and the agent's children
only call exec.
"""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
