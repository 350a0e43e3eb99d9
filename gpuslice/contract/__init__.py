"""The wire contract: every name, quantity and byte layout that crosses a component boundary.

Holds names (annotations, labels, resources, environment variables, paths), quantities, the codecs
of the two pod annotations, and the layout of the files that the node agent and the library share.
Each is defined here once. Invariant: no I/O, no clocks, nothing outside the standard library. C
includes the header that `tools.cheader` writes.
"""
