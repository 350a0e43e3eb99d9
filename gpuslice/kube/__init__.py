"""Access to the API server: a client, credentials, and list-and-watch.

Implements Kubernetes' API conventions for any object type, and makes no decisions. The scheduler
and the node agent use this package; they do not import each other. Imports no package of ours.
"""
