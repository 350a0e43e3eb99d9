"""The verbs over HTTP for pods of each request dialect in turn, one extender and one fleet."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from statistics import median
from typing import Any, Final

from bench.scheduling import verbs
from bench.scheduling.caller import Caller, pod
from bench.scheduling.fleets import GPU_BYTES, Size
from gpuslice.contract import dialects
from gpuslice.contract.dialects import HAMI, KAI, KOORDINATOR, VOLCANO, Dialect

_PERCENT: Final = 20
_MIB: Final = str((GPU_BYTES >> 20) * _PERCENT // 100)
_RESOURCES: Final[Mapping[Dialect, Mapping[str, str]]] = {
    KAI: {},
    VOLCANO: {dialects.VOLCANO_MEMORY: _MIB},
    HAMI: {
        dialects.HAMI_GPU: "1",
        dialects.HAMI_MEMORY_PERCENT: str(_PERCENT),
        dialects.HAMI_CORES: str(_PERCENT),
    },
}
_ORDER: Final = (KOORDINATOR, *_RESOURCES)


def measure(size: Size, pods: int) -> Mapping[str, float]:
    """Return the median of filter and prioritize together, by dialect, in seconds. pods: of each
    dialect."""
    taken: dict[str, list[float]] = defaultdict(list)
    with verbs.other_side(size, "all") as (_, port), closing(Caller(port)) as caller:
        for number, (dialect, asked) in enumerate(_ready(size, pods)):
            node, by_verb = verbs.choose(caller, asked)
            verbs.bind(caller, asked, node)
            if number >= len(_ORDER) * 10:  # the first are the warm-up
                taken[dialect.name].append(sum(by_verb.values()))
    return {dialect: median(each) for dialect, each in taken.items()}


def _ready(size: Size, pods: int) -> Iterator[tuple[Dialect, verbs.PodCalls]]:
    listed = verbs.orders(size.shape.node_names(), random.Random(0))
    for number, names in zip(range(pods * len(_ORDER)), listed, strict=False):
        dialect = _ORDER[number % len(_ORDER)]
        yield dialect, verbs.PodCalls.of(_pod(dialect, number), names)


def _pod(dialect: Dialect, number: int) -> Mapping[str, Any]:
    """A pod that requests the same share in the dialect. KAI and Volcano cap no core by default."""
    made: dict[str, Any] = dict(pod(number, [_PERCENT]))
    if dialect is KOORDINATOR:
        return made
    resources = {"cpu": "10m", "memory": "10Mi", **_RESOURCES[dialect]}
    made["spec"]["containers"][0]["resources"] = {"requests": resources, "limits": resources}
    del made["metadata"]["labels"]
    if dialect is KAI:
        made["metadata"]["annotations"] = {dialects.KAI_FRACTION: str(_PERCENT / 100)}
    made["spec"]["schedulerName"] = dialect.scheduler_name or KOORDINATOR.scheduler_name
    return made


def ratios(measured: Mapping[str, float]) -> Sequence[tuple[str, float]]:
    """Return the time of each other dialect, as a part of Koordinator's."""
    return [(each.name, measured[each.name] / measured[KOORDINATOR.name]) for each in _RESOURCES]
