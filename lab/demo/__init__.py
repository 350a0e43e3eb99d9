"""`make demo`, `make demo-node`, `make demo-faults`: checked claims."""
