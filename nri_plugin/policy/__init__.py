"""Decides what a container gets, or why it is refused. Pure: without I/O, and without a clock."""
