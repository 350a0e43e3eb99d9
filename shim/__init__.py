"""The preloaded library and the Python code around it.

This package locates and publishes `libvgpu.so`, and makes and reads the files of a grant outside
any container. Its command line is `python -m shim`. The C library is in `src/` and does not depend
on Python. No code here depends on Kubernetes or NRI. The node agent imports nothing from this
package, but starts the arbiter (`python -m shim arbiter`) as a child.
"""
