"""The core: which nodes have room, which is best, which GPUs. Arrays in, arrays out.

Holds no Kubernetes field path, no clock and no I/O; `scheduler.state` feeds it, the shell asks it.
Equal inputs give equal choices.
"""
