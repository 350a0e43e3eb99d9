"""`make demo`, `make demo-node`, `make demo-faults`: checks with output."""
