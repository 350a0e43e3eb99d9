"""The scheduler: chooses the GPUs of a pod and writes them in the pod's Binding.

core/ computes on arrays. dialects/ reads requests, with one module for each dialect. kubernetes/
converts Kubernetes objects. decisions/ answers kube-scheduler's verbs from the state of allocations
and reservations. These packages do no I/O. The modules beside them do: cache.py watches the API
server, extender.py serves kube-scheduler, leadership.py decides whether this process may bind,
binder.py writes Bindings, requeuer.py requeues pods. This package imports only `contract` and
`kube` of this repository. `.importlinter` has the order of the layers.
"""
