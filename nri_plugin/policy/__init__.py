"""Decides what a container gets, and why not: pure functions and values, without I/O and clock."""
