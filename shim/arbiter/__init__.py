"""The arbiter: leases each GPU's time to the containers that share it, one after the other.

It is a process of its own (`python -m shim arbiter`). If it ends, the containers continue: each one
uses its own part of each cycle.
"""
