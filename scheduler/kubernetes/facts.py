"""Facts about Kubernetes objects that decide placement, as plain values without field paths.

`scheduler.kubernetes.translate` creates them, and `scheduler.decisions.state` reads them. State
itself creates Problem and Holder, which are reports for people.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from scheduler.core.fleet import Gpu, GpuAmount
from scheduler.core.request import WHOLE_PERCENT, Request, Requirement


@dataclass(frozen=True, slots=True)
class HeldGpu:
    """A bound pod's share of one GPU of its node.

    uuid: None if an older writer recorded only the minor. memory_bytes: None if only memory_percent
    was recorded. core_percent: None if the pod requested no core.
    """

    uuid: str | None
    minor: int
    memory_bytes: int | None
    core_percent: int | None
    memory_percent: int = 0


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What a bound pod holds if its annotations do not show it: possibly any GPU of its node.

    requested: what its containers request. None if unreadable: it may then hold all of any GPU.
    """

    requested: Request | None

    def most_of(self, gpu: Gpu) -> tuple[int, int | None]:
        """Return the most bytes and core that the pod may hold of the GPU."""
        if self.requested is None:
            return gpu.total_bytes, WHOLE_PERCENT
        size, core = self.requested.peak_of(gpu.total_bytes)
        return min(size, gpu.total_bytes), None if core is None else min(core, WHOLE_PERCENT)


Held = Sequence[HeldGpu] | Unreadable


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod. node: "" until it is bound. finished: whether it Succeeded or Failed. A finished pod
    holds nothing, but one that is being deleted (`terminating`) holds its GPUs until it is gone.
    problem: the error in its annotations, for people; "" for none. labels: empty for a pod that
    holds nothing."""

    uid: str
    namespace: str
    name: str
    node: str
    finished: bool
    held: Held
    problem: str = ""
    priority: int = 0
    terminating: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class BudgetFacts:
    """A PodDisruptionBudget. name: NAMESPACE/NAME. selector: empty if it selects no pod. allowed:
    how many more pods may be evicted. disrupted: names of pods whose eviction is counted."""

    name: str
    selector: Sequence[Requirement]
    allowed: int
    disrupted: AbstractSet[str] = frozenset()

    def covers(self, pod: PodFacts) -> bool:
        """Return whether the eviction of this pod of the namespace would count."""
        matches = self.selector and all(each.matches(pod.labels) for each in self.selector)
        return bool(matches) and pod.name not in self.disrupted


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A Node. isolates: whether its label states that it isolates shares. partitioned: whether its
    label requires that a pod's whole GPUs form a group of its partition table. cordoned, excluded:
    UUIDs of GPUs that must not be allocated."""

    name: str
    uid: str
    isolates: bool
    cordoned: AbstractSet[str] = frozenset()
    excluded: AbstractSet[str] = frozenset()
    partitioned: bool = False


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A node's inventory. node_uid: UID of the owning Node; "" if not recorded. gpus: the readable
    GPUs. problems: errors of the others. readable: False if the list itself cannot be read."""

    name: str
    node_uid: str
    gpus: Sequence[Gpu]
    problems: Sequence[str] = ()
    readable: bool = True


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """A node agent's Lease. name: the node's name. beat: a text that changes with each renewal.
    not_ready: why the agent cannot serve containers; "" if it can. renewed_s: time of the renewal
    by the agent's clock, in seconds since the epoch; None if not recorded."""

    name: str
    beat: str
    not_ready: str = ""
    renewed_s: float | None = None


@dataclass(frozen=True, slots=True)
class SchedulerLease:
    """kube-scheduler's Lease. holder: its holder's identity; "" after its release. acquired_s,
    renewed_s: seconds since the epoch by the holder's clock; inf and -inf if not recorded."""

    holder: str = ""
    duration_s: float = 0.0
    acquired_s: float = math.inf
    renewed_s: float = -math.inf


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that needs a person's attention. about, uid: NAMESPACE/NAME and UID of the affected
    pod, or "" if it concerns the node."""

    node: str
    about: str
    text: str
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Holder:
    """What a pod holds of a GPU. pod_key: the pod's NAMESPACE/NAME. gpu: the GPU's UUID. assumed:
    whether the pod's binding was not observed yet."""

    uid: str
    pod_key: str
    gpu: str
    amount: GpuAmount
    assumed: bool


def some_of(listed: Sequence[str], most: int) -> str:
    """Return a text with at most `most` of the names, and the number of the others."""
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more} more" if more > 0 else "")
