"""Facts about Kubernetes objects that decide placement, as plain values without field paths.

Written by `scheduler.kubernetes.translate`, read by `scheduler.decisions.state`. Problem and Holder
are State's reports for people.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from scheduler.core.fleet import Gpu, GpuAmount
from scheduler.core.request import WHOLE_PERCENT, Request


@dataclass(frozen=True, slots=True)
class HeldGpu:
    """A bound pod's share of one GPU of its node.

    uuid None: an older writer recorded only the minor. memory_bytes None: memory_percent of the
    GPU's total applies. core_percent None: the pod requested no compute.
    """

    uuid: str | None
    minor: int
    memory_bytes: int | None
    core_percent: int | None
    memory_percent: int = 0


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A bound pod whose annotations do not show which GPU it holds; it may hold any of its node's
    GPUs.

    asked: what its containers request; None: that is unreadable too, so the pod may hold any GPU
    whole.
    """

    requested: Request | None

    def most_of(self, gpu: Gpu) -> tuple[int, int | None]:
        """Bytes and core: the most that the pod may hold of the GPU."""
        if self.requested is None:
            return gpu.total_bytes, WHOLE_PERCENT
        size, core = self.requested.peak_of(gpu.total_bytes)
        return min(size, gpu.total_bytes), None if core is None else min(core, WHOLE_PERCENT)


Held = Sequence[HeldGpu] | Unreadable


@dataclass(frozen=True, slots=True)
class PodFacts:
    """node: "" until bound. finished: Succeeded or Failed, so it holds nothing; a pod that is being
    deleted holds its GPUs until it is gone. problem: the error in its annotations, for people; ""
    for none."""

    uid: str
    namespace: str
    name: str
    node: str
    finished: bool
    held: Held
    problem: str = ""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """isolates: the node's label states that it isolates shares. partitioned: its label requires
    that several whole GPUs of a pod form a group of its partition table. cordoned, excluded: UUIDs
    of GPUs that must not be allocated."""

    name: str
    uid: str
    isolates: bool
    cordoned: AbstractSet[str] = frozenset()
    excluded: AbstractSet[str] = frozenset()
    partitioned: bool = False


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A node's inventory. node_uid: of the owning Node; "" if the object does not record it. gpus:
    the readable ones. problems: errors in the others. readable False: no GPU is readable."""

    name: str
    node_uid: str
    gpus: Sequence[Gpu]
    problems: Sequence[str] = ()
    readable: bool = True


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """A node agent's Lease. name: of the node. beat: changes with each renewal. not_ready: why the
    agent cannot serve containers; "" if it can. renewed_s: time of the renewal in seconds since the
    epoch by the agent's clock; None: not recorded."""

    name: str
    beat: str
    not_ready: str = ""
    renewed_s: float | None = None


@dataclass(frozen=True, slots=True)
class SchedulerLease:
    """kube-scheduler's Lease. holder: an identity; "" if it was released. acquired_s, renewed_s: in
    seconds since the epoch by the holder's clock; inf, -inf: not recorded."""

    holder: str = ""
    duration_s: float = 0.0
    acquired_s: float = math.inf
    renewed_s: float = -math.inf


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that needs a person's attention. about, uid: a pod's NAMESPACE/NAME and UID, or ""
    for the node."""

    node: str
    about: str
    text: str
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod's share of a GPU. pod_key: NAMESPACE/NAME. gpu: its UUID. assumed: the pod's binding
    was not observed yet."""

    uid: str
    pod_key: str
    gpu: str
    amount: GpuAmount
    assumed: bool


def some_of(listed: Sequence[str], most: int) -> str:
    """The first of the names, and the number of the others."""
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more} more" if more > 0 else "")
