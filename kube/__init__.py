"""How a program of ours speaks to the API server: a client, credentials, a list and a watch.

Knows Kubernetes' way of answering and no object of ours; decides nothing. The scheduler and the
node agent use it, who know nothing of each other. It imports nothing else of ours.
"""
