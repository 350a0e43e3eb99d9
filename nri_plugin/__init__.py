"""The node agent: adds GPU shares with their limits to pods, through containerd's NRI.

protocol/ implements NRI without I/O; messages/ has the generated protobuf classes; nri/ does the
socket I/O, enforces deadlines and applies what policy/, which is pure, decides. host/ has the
node's files, gpu/ queries the driver, kube/ reads and writes the API server, doctor/ checks a node.
Imports `contract`, `gpu` and `kube`, and no other package of this repository.
"""
