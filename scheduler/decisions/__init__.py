"""kube-scheduler's verbs, answered from the state. Pure: no clock, no I/O; arguments carry both."""
