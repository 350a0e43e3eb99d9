"""Answers kube-scheduler's verbs from the state, without I/O. Times are arguments."""
