"""The core: which nodes fit, which is best, which GPUs are used. Arrays in, arrays out.

Contains no Kubernetes field path, no clock and no I/O. `scheduler.decisions.state` updates it.
Equal inputs give equal choices.
"""
