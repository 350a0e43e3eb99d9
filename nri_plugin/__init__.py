"""The node agent: adds GPU shares with their limits to pods, through containerd's NRI.

policy/ decides what a container gets, without I/O. containers/ carries these decisions out.
protocol/ implements NRI without I/O, nri/ does its socket I/O, and messages/ has the generated
protobuf classes. host/ reads and writes the node's files, gpu/ queries the driver, kube/ talks to
the API server, and kubelet/ is the device plugin for whole GPUs. doctor/ checks a node.
distributor.py keeps a copy of the library for other projects. `.importlinter` orders the layers.
"""
