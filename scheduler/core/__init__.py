"""The core computes on arrays which nodes fit a pod, which node is best, and which GPUs it gets.

It knows no Kubernetes objects, no clock and no I/O. `scheduler.decisions.state` updates its data.
Equal inputs give equal choices.
"""
