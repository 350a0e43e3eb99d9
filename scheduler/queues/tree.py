"""KAI's Queue objects as a tree. Pure.

The root has no name and stands for the cluster. A Queue whose ancestors do not exist, are invalid
or form a cycle is not in the tree. Its fault says why. Other modules compute the later fields.
Amounts are in thousandths of a GPU; None stands for KAI's -1, unlimited. As in KAI, an absent quota
or limit is 0, an absent overQuotaWeight is 0, and an absent priority is 100.
Source: KAI-Scheduler pkg/apis/scheduling/v2 (Queue).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, NamedTuple

from gpuslice.kube.fields import Json, at

GROUP: Final = "scheduling.run.ai"
API_VERSION: Final = f"{GROUP}/v2"
PLURAL: Final = "queues"
QUEUES: Final = f"/apis/{API_VERSION}/{PLURAL}"
ROOT: Final = "gpuslice-root"
"""The root Cohort, whose name no Queue may have."""
MILLI: Final = 1000
_UNLIMITED: Final = -1
_PRIORITY: Final = 100
_MOST: Final = 999_999_999
_UNTRANSLATED: Final = ("preemptMinRuntime", "reclaimMinRuntime")


class Finding(NamedTuple):
    """The reason and message of a condition."""

    reason: str
    message: str


@dataclass(slots=True, eq=False)
class Queue:
    """A queue. The first fields are as written; the others include all queues below.

    notes: fields without effect. below: the served queues whose parent it is, by name. own: the
    part of its guarantee that no queue below has. most: what it may use at most; None: no limit of
    its own. fair_weight: among its siblings. share: what KAI's rule gives it of what all queues
    want now. waiting: Workloads. unplaceable: pods that no GPU has room for. strays: pods that name
    it although it has children.
    """

    name: str = ""
    parent: str = ""
    quota: int | None = None
    limit: int | None = None
    weight: float = 1.0
    priority: int = _PRIORITY
    notes: list[Finding] = field(default_factory=list)
    fault: Finding | None = None
    above: Queue | None = None
    below: list[Queue] = field(default_factory=list)
    own: int = 0
    part: Fraction = Fraction(1)
    guaranteed: int = 0
    most: int | None = None
    fair_weight: float = 1.0
    share: float = 0.0
    used: int = 0
    wanted: int = 0
    waiting: int = 0
    unplaceable: int = 0
    strays: list[str] = field(default_factory=list)

    @property
    def is_leaf(self) -> bool:
        """Whether it is served and runs pods."""
        return self.above is not None and not self.below

    def tree(self) -> Iterator[Queue]:
        """Yield all queues below, parents first."""
        for each in self.below:
            yield each
            yield from each.tree()

    def path(self) -> Iterator[Queue]:
        """Yield the queue and those above, the root last."""
        queue: Queue | None = self
        while queue:
            yield queue
            queue = queue.above


Queues = Mapping[str, Queue]
"""By name. The name of the root is empty."""


def build(raws: Iterable[Json]) -> Queues:
    """Return the queues of the objects."""
    root = Queue()
    queues = {"": root} | {queue.name: queue for queue in map(read, raws)}
    named = [queues[name] for name in sorted(queues) if name]
    for queue in named:
        if not queue.fault and queue.parent in queues:
            queues[queue.parent].below.append(queue)
    for queue in root.tree():
        queue.above = queues[queue.parent]
    for queue in named:
        if not queue.above and not queue.fault:
            queue.fault = _fault(queue, queues)
    return queues


def _fault(queue: Queue, queues: Queues) -> Finding:
    """Return why there is no way from the queue to the root."""
    written = f"spec.parentQueue: invalid value {queue.parent}: must be"
    if queue.parent not in queues:
        return Finding("ParentMissing", f"{written} the name of a Queue")
    path = [queue.name, queue.parent]
    while path[-1] in queues and path[-1] not in path[:-1]:
        path.append(queues[path[-1]].parent)
    way = " > ".join(each for each in path if each)
    return Finding("ParentNotServed", f"{written} a Queue that is served, and in no cycle: {way}")


def read(raw: Json) -> Queue:
    """Read one Queue."""
    spec, name = at(raw, "spec"), str(at(raw, "metadata").get("name", ""))
    gpu, numbers, fault = at(at(spec, "resources"), "gpu"), dict[str, float](), ""
    if name == ROOT:
        fault = f"metadata.name: invalid value {name}: must not be that of the root cohort"
    for key, least in (("quota", _UNLIMITED), ("limit", _UNLIMITED), ("overQuotaWeight", 0)):
        number = gpu.get(key) or 0
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number or not (number == least or 0 <= number <= _MOST):
            must = f"{'-1, or ' if least else ''}a number from 0 to {_MOST}"
            fault = f"spec.resources.gpu.{key}: invalid value {number}: must be {must}"
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
        fault=Finding("InvalidSpec", fault) if fault else None,
    )


def _milli(gpus: float) -> int | None:
    return None if gpus == _UNLIMITED else round(gpus * MILLI)


def _notes(spec: Json, limit: float) -> Iterator[Finding]:
    if not limit:
        text = "spec.resources.gpu.limit: 0 or absent allows no GPU; -1 is no limit"
        yield Finding("NothingAllowed", text)
    for key in ("cpu", "memory"):
        asked = at(at(spec, "resources"), key)
        if not asked.get("quota") == asked.get("limit") == _UNLIMITED:
            text = f"spec.resources.{key}: has no effect: queues count GPUs only; -1 says the same"
            yield Finding("GPUsOnly", text)
    for key in _UNTRANSLATED:
        if key in spec:
            yield Finding("NotTranslated", f"spec.{key}: has no effect: Kueue has no counterpart")
