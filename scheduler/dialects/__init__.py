"""Reads what a pod requests of a node, with one module for each dialect."""
