"""The arbiter: leases each GPU's time to the containers that share it, one after the other.

The arbiter is a process of its own (`python -m shim arbiter`). If that process ends, the containers
continue, and each uses its own part of each cycle.
"""
