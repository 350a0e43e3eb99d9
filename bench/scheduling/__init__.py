"""Benchmarks of the scheduler: its core, its verbs over HTTP, kube-scheduler with it, its
memory.

Uses scheduler and lab.cluster; only `python -m bench scheduler` uses it.
"""
