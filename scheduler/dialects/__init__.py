"""Readers of request dialects: a pod's fields -> what it requests of a node.

Uses scheduler.core's types; scheduler.kubernetes and scheduler.decisions use it.
"""
