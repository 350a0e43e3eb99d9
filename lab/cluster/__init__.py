"""A Kubernetes cluster of one node on this machine."""
