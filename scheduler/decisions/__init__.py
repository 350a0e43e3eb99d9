"""kube-scheduler's verbs, answered from the state. Pure: no clock, no I/O; arguments carry both.

Uses scheduler.core, dialects and kubernetes; extender, binder and cache use it.
"""
