"""KAI's Queue objects as a tree. Pure.

A Queue whose ancestors do not exist, are invalid or form a cycle is not served. Its fault says why.
Amounts are in thousandths of a GPU; None stands for KAI's -1, unlimited. As in KAI, an absent quota
or limit is 0, an absent overQuotaWeight is 0, and an absent priority is 100.
Source: KAI-Scheduler pkg/apis/scheduling/v2 (Queue).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from gpuslice.kube.fields import Json, at

GROUP: Final = "scheduling.run.ai"
API_VERSION: Final = f"{GROUP}/v2"
PLURAL: Final = "queues"
MILLI: Final = 1000
_UNLIMITED: Final = -1
_PRIORITY: Final = 100
_MOST: Final = 1e9
_UNCOUNTED: Final = ("cpu", "memory")
_UNTRANSLATED: Final = ("preemptMinRuntime", "reclaimMinRuntime")


class Finding(NamedTuple):
    """The reason and message of a condition."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Queue:
    """A Queue as written. quota, limit: see the module. notes: parts without effect. fault: why the
    object itself is invalid."""

    name: str
    parent: str
    quota: int | None
    limit: int | None
    weight: float
    priority: int
    notes: Sequence[Finding] = ()
    fault: Finding | None = None


@dataclass(frozen=True, slots=True)
class Tree:
    """queues: all, by name. faults: why a queue is not served, by name. children: the names of the
    served queues below a served one, in order; those of "" are the top."""

    queues: Mapping[str, Queue]
    faults: Mapping[str, Finding]
    children: Mapping[str, Sequence[str]]

    def is_leaf(self, name: str) -> bool:
        """Return whether the queue is served and runs pods."""
        return name in self.queues and name not in self.faults and name not in self.children

    def served(self) -> Iterator[Queue]:
        """Yield the served queues, parents first."""
        below = [*reversed(self.children.get("", ()))]
        while below:
            name = below.pop()
            yield self.queues[name]
            below += reversed(self.children.get(name, ()))

    def path(self, name: str) -> Iterator[Queue]:
        """Yield a served queue and its ancestors, the top last."""
        while name:
            yield self.queues[name]
            name = self.queues[name].parent


def build(raws: Iterable[Json], reserved: str = "") -> Tree:
    """Return the tree of the objects. reserved: a name that no Queue may have."""
    queues = {queue.name: queue for queue in map(read, raws)}
    if reserved in queues:
        text = f"metadata.name: invalid value {reserved}: must not be that of the root cohort"
        fault = Finding("InvalidName", text)
        queues[reserved] = replace(queues[reserved], fault=fault)
    faults, children = {}, dict[str, list[str]]()
    for name, queue in sorted(queues.items()):
        if found := _fault(queue, queues):
            faults[name] = found
        else:
            children.setdefault(queue.parent, []).append(name)
    return Tree(queues, faults, children)


def read(raw: Json) -> Queue:
    """Read one Queue."""
    spec, name = at(raw, "spec"), str(at(raw, "metadata").get("name", ""))
    resources = at(spec, "resources")
    gpu, faults = at(resources, "gpu"), list[str]()
    numbers = {}
    for key, least in (("quota", _UNLIMITED), ("limit", _UNLIMITED), ("overQuotaWeight", 0)):
        number = gpu.get(key) or 0
        if not _is_valid(number, least):
            must = "-1 or at least 0" if least else "at least 0"
            faults.append(f"spec.resources.gpu.{key}: invalid value {number}: must be {must}")
            number = 0
        numbers[key] = number
    parent, priority = spec.get("parentQueue") or "", spec.get("priority")
    return Queue(
        name=name,
        parent=parent if isinstance(parent, str) else "",
        quota=_milli(numbers["quota"]),
        limit=_milli(numbers["limit"]),
        weight=float(numbers["overQuotaWeight"]),
        priority=priority if isinstance(priority, int) else _PRIORITY,
        notes=[*_notes(spec, numbers["limit"])],
        fault=Finding("InvalidSpec", "; ".join(faults)) if faults else None,
    )


def _is_valid(number: object, least: int) -> bool:
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return False
    return (number == least or number >= 0) and math.isfinite(number) and number < _MOST


def _milli(gpus: float) -> int | None:
    return None if gpus == _UNLIMITED else round(gpus * MILLI)


def _notes(spec: Json, limit: float) -> Iterator[Finding]:
    if not limit:
        text = "spec.resources.gpu.limit: 0 or absent allows no GPU; -1 is no limit"
        yield Finding("NothingAllowed", text)
    for key in _UNCOUNTED:
        asked = at(at(spec, "resources"), key)
        if not asked.get("quota") == asked.get("limit") == _UNLIMITED:
            text = f"spec.resources.{key}: has no effect: queues count GPUs only; -1 says the same"
            yield Finding("GPUsOnly", text)
    for key in _UNTRANSLATED:
        if key in spec:
            yield Finding("NotTranslated", f"spec.{key}: has no effect: Kueue has no counterpart")


def _fault(queue: Queue, queues: Mapping[str, Queue]) -> Finding | None:
    """Return why the queue cannot be served: the first fault on its path to the top."""
    path = [queue.name]
    while True:
        each = queues[path[-1]]
        above = f"spec.parentQueue: the queue {each.name} above is not served: "
        prefix = above if len(path) > 1 else ""
        if each.fault:
            return Finding(each.fault.reason, prefix + each.fault.message)
        if not each.parent:
            return None
        written = f"{prefix}spec.parentQueue: invalid value {each.parent}: must "
        if each.parent in path:
            way = " > ".join((*path, each.parent))
            return Finding("Cycle", f"{written}not lead back to a queue below: {way}")
        if each.parent not in queues:
            return Finding("ParentMissing", f"{written}be the name of a Queue")
        path.append(each.parent)
