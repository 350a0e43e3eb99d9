"""The limits of a node for a container of a plain Docker host.

The container gets what the node agent would give it: a ContainerPlan, whose files are below the run
directory. Docker applies the plan as one CDI device per grant. Therefore the container has the GPU
only together with its limit, and a missing file refuses the start.
"""
