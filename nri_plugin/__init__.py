"""The node agent: adds GPU shares with their limits to pods, through containerd's NRI.

protocol/ implements NRI without I/O; messages/ has the generated protobuf classes; nri/ does the
socket I/O, enforces deadlines and applies what policy/, which is pure, decides; containers/ has
what happens to a container, whatever the protocol. host/ has the node's files, gpu/ queries the
driver, kube/ reads and writes the API server, kubelet/ is the device plugin for whole GPUs.
Programs beside the agent: distributor.py keeps a copy of the library for other projects, and
doctor/ checks a node.
Imports `contract`, `gpu` and `kube`, and no other package of this repository. `.importlinter` has
the order of the layers.
"""
