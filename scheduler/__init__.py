"""The scheduler: chooses the GPUs of a pod and writes them in the pod's Binding.

`core` decides (pure numpy: fleet, fit, score, place). `translate`, `requests` and `dialects` read
Kubernetes objects and the pods' requests. `state` holds allocations and reservations. `binding` is
the content of the Binding. The extender serves them to kube-scheduler. The package imports
`contract`, `kube` where it calls the API server, and no other package of this repository.
"""
