"""What a pod requests of a node, independent of the request's dialect.

`scheduler.kubernetes.requests` reads it from the pod.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from fractions import Fraction
from functools import lru_cache
from typing import Final

WHOLE_PERCENT: Final = 100


class Phase(Enum):
    """When a container runs. INIT containers run one after the other, before the main containers. A
    SIDECAR starts in its place among the init containers and runs until the pod ends. MAIN
    containers run together, beside all sidecars."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


class Policy(Enum):
    """How GPUs are chosen; see `place`. FIRST chooses the GPUs of the lowest minors that fit."""

    BINPACK = "binpack"
    SPREAD = "spread"
    FIRST = "first"


class Scope(IntEnum):
    """The part of a node that must contain all GPUs of a pod. Narrower parts have larger values."""

    NODE = 1
    NUMA_NODE = 2
    PCIE = 3
    DEVICE = 4


Shape = tuple[object, ...]
"""A hashable key, equal for requests that are placed alike. Containers' names do not affect it."""


def share_of(total_bytes: int, ratio: Fraction) -> int:
    """Return the ratio of the bytes, rounded down, but at least 1: a limit of 0 means no limit."""
    return max(1, total_bytes * ratio.numerator // ratio.denominator)


@lru_cache(WHOLE_PERCENT)
def ratio_of_percent(amount: int) -> Fraction:
    """Return a percentage as a ratio."""
    return Fraction(amount, WHOLE_PERCENT)


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What one container requests: an equal share of each of `gpus` distinct GPUs.

    order: the index among the pod's main containers if MAIN, else among its init containers and
    sidecars. core_percent: 1 to 100 of each GPU; None: no core is requested or limited. Of
    memory_bytes (at least 1) and memory_ratio (over 0, at most 1), exactly one is set, per GPU.
    """

    name: str
    phase: Phase = Phase.MAIN
    order: int = 0
    gpus: int = 1
    core_percent: int | None = None
    memory_bytes: int | None = None
    memory_ratio: Fraction | None = None

    def __post_init__(self) -> None:
        if (self.memory_bytes is None) == (self.memory_ratio is None):
            raise ValueError("memory_bytes and memory_ratio: exactly one must be set")
        if self.memory_ratio is not None and not 0 < self.memory_ratio <= 1:
            raise ValueError(f"memory_ratio: invalid value {self.memory_ratio}: must be 0 to 1")

    def bytes_of(self, total_bytes: int) -> int:
        """Return the bytes that the container requests of a GPU of `total_bytes`."""
        if self.memory_ratio is None:
            assert self.memory_bytes is not None
            return self.memory_bytes
        return share_of(total_bytes, self.memory_ratio)

    def amounts(self) -> Shape:
        """Return all fields except the name. The ratio is two integers, whose hash is fast."""
        ratio = self.memory_ratio and self.memory_ratio.as_integer_ratio()
        amounts = (self.gpus, self.core_percent, self.memory_bytes, ratio)
        return (self.phase, self.order, *amounts)


class Attribute(Enum):
    """The GPU's attribute that a requirement tests."""

    LABEL = "label"
    MODEL = "model"
    UUID = "uuid"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement of a selector of GPUs, which works like Kubernetes' label selectors.

    A LABEL requirement without values tests whether the GPU has the label `key`. With values, it
    tests whether the label's value is one of them. MODEL tests whether the model's name contains
    one of the values, which are in lower case. UUID tests whether the UUID is one of the values.
    These two have no key. negated: the requirement holds where the test fails.
    """

    key: str
    values: frozenset[str] | None = None
    negated: bool = False
    attribute: Attribute = Attribute.LABEL

    def matches(self, labels: Mapping[str, str], model: str = "", uuid: str = "") -> bool:
        values = self.values or frozenset()
        if self.attribute is Attribute.MODEL:
            is_match = any(part in model.lower() for part in values)
        elif self.attribute is Attribute.UUID:
            is_match = uuid in values
        else:
            is_match = self.key in labels and (self.values is None or labels[self.key] in values)
        return is_match != self.negated


@dataclass(frozen=True, slots=True)
class Request:
    """A pod's request.

    containers: at least one. policy: None for the policy of the pod's scheduler profile. isolation:
    whether the node must isolate GPU shares.
    """

    containers: Sequence[ContainerRequest]
    policy: Policy | None = None
    selector: Sequence[Requirement] = ()
    scope: Scope = Scope.NODE
    isolation: bool = False
    moments: Sequence[tuple[int, ...]] = field(init=False)
    """The moments at which each container runs; see `moments_of`."""
    shape: Shape = field(init=False)
    whole_gpus: int = field(init=False)
    """The largest number of whole GPUs that the pod holds at any moment."""

    def __post_init__(self) -> None:
        if not self.containers:
            raise ValueError("a request has at least one container")
        # Tuples can be hashed, and equal requests then have equal hashes.
        object.__setattr__(self, "containers", tuple(self.containers))
        object.__setattr__(self, "selector", tuple(self.selector))
        object.__setattr__(self, "moments", moments_of(self.containers))
        terms = (self.policy, self.selector, self.scope, self.isolation)
        object.__setattr__(
            self, "shape", (*terms, *(container.amounts() for container in self.containers))
        )
        whole = self._peak(lambda each: each.gpus if each.memory_ratio == 1 else 0)
        object.__setattr__(self, "whole_gpus", whole)

    @property
    def moment_count(self) -> int:
        return 1 + max(moment for runs_at in self.moments for moment in runs_at)

    def peak_of(self, total_bytes: int) -> tuple[int, int | None]:
        """Return the bytes and the core that the pod would hold of a GPU of `total_bytes` if all
        its containers were on it. The core is None if no container requests core."""
        capped = any(container.core_percent is not None for container in self.containers)
        core = self._peak(lambda each: each.core_percent or 0) if capped else None
        return self._peak(lambda each: each.bytes_of(total_bytes)), core

    def _peak(self, amount: Callable[[ContainerRequest], int]) -> int:
        """Sum the amounts of the containers that run at each moment. Return the largest sum."""
        sums = [0] * self.moment_count
        for container, moments in zip(self.containers, self.moments, strict=True):
            for moment in moments:
                sums[moment] += amount(container)
        return max(sums)


def moments_of(containers: Sequence[ContainerRequest]) -> Sequence[tuple[int, ...]]:
    """Return the moments of the pod's life at which each container runs, numbered from 0.

    Each init container with a request has its own moment, at which the sidecars started before it
    run too. All sidecars and main containers run at the last moment. A pod holds of a GPU the
    maximum over the moments of what its containers hold, as Kubernetes counts other resources.
    """
    inits = sorted(container.order for container in containers if container.phase is Phase.INIT)
    moments: list[tuple[int, ...]] = []
    for container in containers:
        if container.phase is Phase.INIT:
            moments.append((inits.index(container.order),))
        elif container.phase is Phase.SIDECAR:
            later = tuple(moment for moment, order in enumerate(inits) if order > container.order)
            moments.append((*later, len(inits)))
        else:
            moments.append((len(inits),))
    return tuple(moments)


def largest_first(request: Request, largest_bytes: int) -> list[int]:
    """Return the containers' indices, the largest first: by number of GPUs, then by share of one.

    largest_bytes: the size of the node's largest GPU. Bytes are compared as a ratio of this size.
    """

    def size_rank(number: int) -> tuple[int, float, int]:
        container = request.containers[number]
        size = container.bytes_of(largest_bytes) / largest_bytes
        return (-container.gpus, -(size + (container.core_percent or 0) / WHOLE_PERCENT), number)

    return sorted(range(len(request.containers)), key=size_rank)
