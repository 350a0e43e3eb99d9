"""The command `gpuslice`. It may import all components; no component imports it.

`main` has the table of commands. A command is a module of this package, and is imported only when
it runs, so that `gpuslice --help` starts at once. The images do not contain this package.
"""
