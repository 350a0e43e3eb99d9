"""The node agent: adds GPU shares with their limits to pods, through containerd's NRI.

protocol/ implements NRI without I/O; messages/ has the generated protobuf classes; nri/ does the
socket I/O and applies what policy/, which is pure, decides; containers/ has what happens to a
container. host/ has the node's files, gpu/ queries the driver, kube/ reads and writes the API
server, kubelet/ is the device plugin for whole GPUs. doctor/ checks a node, and distributor.py
keeps a copy of the library for other projects. `.importlinter` has the order of the layers.
"""
