"""The state of a pod's ResourceClaims, as `explain` shows it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from gpuslice.cli import claims
from gpuslice.kube.fields import Json
from scheduler.decisions.simulate import size

MISSING: Final = "does not exist"
UNREAD: Final = "cannot be read"


def states(pod: Json, listed: Iterable[Json] | None) -> Mapping[str, str]:
    """Return the state of each claim of the pod, without other drivers' claims. listed: all
    ResourceClaims; None if the user may not list them."""
    if listed is None:
        return {f"claim {claim or label}": UNREAD for label, claim in claims.named(pod).items()}
    namespace, name = claims.key(pod)
    every = {claims.key(each): each for each in listed}
    mine, found = claims.ours(every.values()), {}
    for label, claim in claims.named(pod).items():
        at_key = namespace, claim
        if at_key not in every:
            found[f"claim {claim or label}"] = MISSING
        elif raw := mine.get(at_key):
            given = [
                f"{size(e.memory_bytes)} and {core} of {e.device} on {e.node}"
                for e in claims.parts(raw)
                for core in [f"{e.core_percent} %" if e.core_percent else "no share of compute"]
            ]
            text = f"has {', '.join(given)}" if given else "is not allocated"
            if given and name not in claims.pods(raw):
                text += ", and is not reserved for this pod"
            found[f"claim {claim}"] = text
    return found
