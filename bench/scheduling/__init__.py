"""Benchmarks of the scheduler: its core, its verbs over HTTP, kube-scheduler with it, its
memory."""
