"""The scheduler: chooses the GPUs of a pod and writes them in the pod's Binding.

core/ decides on arrays; dialects/ has one reader of requests for each system's names; kubernetes/
converts objects and requests; decisions/ answers kube-scheduler's verbs from the state of
allocations and reservations. These are pure. The modules beside them do the I/O: cache.py watches
the API server, extender.py serves kube-scheduler, leadership.py permits to bind, binder.py writes
Bindings, requeuer.py requeues pods.
Imports `contract` and `kube`, and no other package of this repository. `.importlinter` has the
order of the layers.
"""
