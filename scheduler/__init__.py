"""The scheduler's side: which card of the placed node, how much of it, in one write.

Will hold: `core` (pure numpy: fleet, fit, score, place), `translate` (Kubernetes fields and request
dialects), and the extender around them (docs/adr/0001). It imports `contract` and nothing else of
ours. Until it lands, whoever writes the two annotations of `contract.names` plays its part, as the
demonstration does.
"""
