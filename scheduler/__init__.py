"""The scheduler's side: which GPU of the placed node, how much of it, in one write.

`core` decides (pure numpy: fleet, fit, score, place); `translate`, with `dialects` and `hints`,
knows Kubernetes' fields and what is asked in which dialect; `state` keeps what is held; `written`
is what the Binding carries. The extender stands around them. It imports `contract` and, where it
speaks to the API server, `kube`, and nothing else of ours.
"""
