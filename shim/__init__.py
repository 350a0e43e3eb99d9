"""The library that a limited program carries, and what Python needs around it.

Holds: finding and publishing `libvgpu.so`, making and reading the files of a grant outside any
container, and the command line over both. The C library itself is in `src/`, and knows no Python.
Must not hold: anything of Kubernetes or NRI; the node agent is a neighbour, not a client.
"""
