"""Readers of request dialects: a pod's fields -> what it requests of a node."""
