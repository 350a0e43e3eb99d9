"""The kinds of pods in the loads: what each requests, and how frequent it is."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuslice.contract import names
from tests.load.accounts import Share
from tests.load.inside import SCRIPT
from tests.requests import pods
from tests.requests.pods import Json


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of pods. containers: the request of each container. storm, crowd: how many of a
    hundred pods of that load are of this kind."""

    containers: Sequence[Share | None]
    storm: int = 0
    crowd: int = 0


KINDS: Final[Mapping[str, Kind]] = {
    "whole": Kind([Share(1, 100, 100)], storm=30, crowd=5),
    "large": Kind([Share(1, 60, 60)], storm=35),
    "small": Kind([Share(1, 40, 40)], storm=20),
    "halves": Kind([Share(1, 50, 50), Share(1, 50, 50)], storm=10),
    "two-whole": Kind([Share(2, 100, 100)], storm=5),
    "tenth": Kind([Share(1, 10, 10)], crowd=30),
    "odd": Kind([Share(1, 7, 13)], crowd=14),
    "third": Kind([Share(1, 33, 20)], crowd=14),
    "half": Kind([Share(1, 50, 50)], crowd=10),
    "two-containers": Kind([Share(1, 20, 10), Share(1, 30, 20)], crowd=5),
    "beside": Kind([Share(1, 10, 10), None], crowd=6),
    "two-gpus": Kind([Share(2, 25, 30)], crowd=6),
    "plain": Kind([None], crowd=10),
}
"""A hundred pods of a storm request 85 GPUs. A hundred pods of a crowd request 25."""


def drawn(chance: random.Random, count: int, of: str) -> Sequence[str]:
    """Return random kinds. of: the name of the load, "storm" or "crowd"."""
    weights = [getattr(kind, of) for kind in KINDS.values()]
    return chance.choices(list(KINDS), weights, k=count)


def pod(name: str, kind: str) -> Json:
    """Return a pod whose containers print their view of their shares when they run (inside.py)."""
    shares = KINDS[kind].containers
    containers = (_container(number, share) for number, share in enumerate(shares))
    scheduler = names.SCHEDULER_NAME if any(shares) else ""
    raw = pods.pod(*containers, scheduler=scheduler, name=name, labels={"kind": kind})
    ends = {"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}
    return raw | {"spec": {**raw["spec"], **ends}}


def _container(number: int, share: Share | None) -> Json:
    limits = {"memory": "60Mi"}
    if share is not None:
        limits |= {
            names.RESOURCE_SHARED: str(share.gpus),
            names.RESOURCE_CORE: str(share.gpus * share.core_percent),
            names.RESOURCE_MEMORY_RATIO: str(share.gpus * share.memory_percent),
        }
    return pods.container(
        f"c{number}",
        image="busybox",
        imagePullPolicy="IfNotPresent",
        command=["sh", "-c", SCRIPT],
        resources={"limits": limits, "requests": {**limits, "cpu": "5m", "memory": "10Mi"}},
    )
