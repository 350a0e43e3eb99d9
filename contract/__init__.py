"""The wire contract: every name, quantity and byte that crosses a component boundary, once.

Holds: names (annotations, labels, resources, environment, paths), quantities, the codecs of the
two pod annotations, the layout of the two files that the node agent and the library share, and the
form of log lines.
Must not hold: I/O, clocks, or anything beyond the standard library.
Read by: scheduler, nri_plugin, shim, simgpu; C reads the two headers that `cheader` generates.
"""
