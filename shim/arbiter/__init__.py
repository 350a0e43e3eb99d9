"""The arbiter: leases each GPU's time to the containers that share it, one after the other.

A process of its own (`python -m shim arbiter`): its end affects no container, which then keeps its
own part of each cycle.
"""
