"""Queries of the driver about GPUs, in child processes with deadlines.

Uses gpu and nri_plugin.policy; every layer above uses it.
"""
