"""Queries of the driver about GPUs, in child processes with deadlines."""
