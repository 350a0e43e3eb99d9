"""Access to the API server: a client, credentials, and list-and-watch.

Implements Kubernetes' API conventions for any object type, and makes no decisions. The scheduler
and the node agent use it; they do not import each other. It imports no other package of ours.
"""
