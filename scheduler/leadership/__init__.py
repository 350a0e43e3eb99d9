"""Which process may write allocations: the Lease, the election, the fencing."""
