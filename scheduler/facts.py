"""What the scheduler knows of Kubernetes' objects: the few facts that decide, as values.

Written by `scheduler.translate`, read by `scheduler.state`; neither field paths nor dialects here.
Problem and Holder are what the state reports for people.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from scheduler.core.fleet import Gpu
from scheduler.core.request import WHOLE_PERCENT, Request


@dataclass(frozen=True, slots=True)
class HeldGpu:
    """What a bound pod holds of one GPU of its node.

    uuid None: an older writer told the minor alone. memory_bytes None: memory_percent tells, of
    the GPU's total. core_percent None: none was asked for.
    """

    uuid: str | None
    minor: int
    memory_bytes: int | None
    core_percent: int | None
    memory_percent: int = 0


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A bound pod whose annotations do not tell which GPU it holds: it may be any of its node's.

    asked: what its containers ask for; None: that cannot be read either, so that it may hold any
    GPU whole.
    """

    asked: Request | None

    def most_of(self, gpu: Gpu) -> tuple[int, int | None]:
        """Bytes and core: the most that it may hold of the GPU."""
        if self.asked is None:
            return gpu.total_bytes, WHOLE_PERCENT
        size, core = self.asked.peak_of(gpu.total_bytes)
        return min(size, gpu.total_bytes), None if core is None else min(core, WHOLE_PERCENT)


Held = Sequence[HeldGpu] | Unreadable


@dataclass(frozen=True, slots=True)
class PodFacts:
    """node: "" until bound. finished: Succeeded or Failed, so that it holds nothing any more;
    one that is being deleted holds until it is gone. problem: what is wrong with its annotations,
    for people, "" for nothing."""

    uid: str
    namespace: str
    name: str
    node: str
    finished: bool
    held: Held
    problem: str = ""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """isolates: the node's label says that it can. partitioned: its label requires that several
    whole GPUs of a pod are a group of its partition table. cordoned, excluded: UUIDs of GPUs that
    may not be given."""

    name: str
    uid: str
    isolates: bool
    cordoned: AbstractSet[str] = frozenset()
    excluded: AbstractSet[str] = frozenset()
    partitioned: bool = False


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A node's inventory. node_uid: of the Node that owns it, "" where it does not say. GPUs:
    those that can be read; problems: what is wrong with the others. readable False: with all."""

    name: str
    node_uid: str
    gpus: Sequence[Gpu]
    problems: Sequence[str] = ()
    readable: bool = True


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """A node agent's sign of life. name: of the node. beat: changes whenever the agent renews.
    not_ready: why it can serve no container, "" where it can. renewed_s: when, in seconds since the
    epoch by the agent's clock; None: it does not say."""

    name: str
    beat: str
    not_ready: str = ""
    renewed_s: float | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a person should look at. about, uid: a pod's NAMESPACE/NAME and UID, or ""
    for the node."""

    node: str
    about: str
    text: str
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that holds GPUs of a node. whose: NAMESPACE/NAME. GPUs: of those that are there,
    (UUID, bytes, percent of core or None). assumed: its binding was not seen yet."""

    uid: str
    whose: str
    gpus: Sequence[tuple[str, int, int | None]]
    assumed: bool
