"""The preloaded library and the Python code around it.

Contents: locating and publishing `libvgpu.so`, making and reading the files of a grant outside any
container, and the command line for both. The C library is in `src/` and does not depend on Python.
Kubernetes and NRI do not belong here. The node agent imports nothing from this package; it starts
the arbiter (`python -m shim arbiter`) as a child.
"""
