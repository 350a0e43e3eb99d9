"""Which process may write allocations: the Lease, the election, the fencing.

Uses scheduler.kubernetes; leader, binder and service use it.
"""
