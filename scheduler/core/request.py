"""A pod's request of a node, independent of its dialect.

Created by `scheduler.kubernetes.requests`.
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
    """When a container runs. INIT containers run one after the other and end before the main ones
    start. A SIDECAR starts in order among them and stays. MAIN ones run together, beside all
    sidecars."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


class Policy(Enum):
    """FIRST: the GPUs with free capacity that have the lowest minors."""

    BINPACK = "binpack"
    SPREAD = "spread"
    FIRST = "first"


class Scope(IntEnum):
    """The part of the node that must contain all GPUs of a pod. Narrower ones are larger."""

    NODE = 1
    NUMA_NODE = 2
    PCIE = 3
    DEVICE = 4


Shape = tuple[object, ...]
"""Hashable; equal for requests that are placed alike, whatever the names of their containers."""


def share_of(total_bytes: int, ratio: Fraction) -> int:
    """The bytes of the ratio, rounded down, and one byte at least: a share of none has no limit."""
    return max(1, total_bytes * ratio.numerator // ratio.denominator)


@lru_cache(WHOLE_PERCENT)
def ratio_of_percent(amount: int) -> Fraction:
    """Hundredths as a ratio."""
    return Fraction(amount, WHOLE_PERCENT)


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """One container's shares: of each of `gpus` distinct GPUs, the same.

    order: its index among the init containers, sidecars included; of MAIN ones among the main.
    core_percent: 1 to 100 of each GPU; None: no compute is requested, and none is capped. Exactly
    one of memory_bytes (at least 1) and memory_ratio (over 0, at most 1) is set, per GPU.
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
        """The memory requested of a GPU of that size."""
        if self.memory_ratio is None:
            assert self.memory_bytes is not None
            return self.memory_bytes
        return share_of(total_bytes, self.memory_ratio)

    def amounts(self) -> Shape:
        """All of it except the container's name. A ratio as two integers, whose hash is fast."""
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
    """One requirement of a selector over a GPU's labels, with the semantics of Kubernetes label
    selectors.

    values None: `key` exists (negated: does not). Else its value is one of them (negated: is none
    of them, or the key is absent). Other attributes have no key: the model contains one of the
    values, which are in lower case; the UUID is one of them.
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
    """A pod's request. containers: at least one.

    policy None: the profile's. isolation: the node must support isolation.
    """

    containers: Sequence[ContainerRequest]
    policy: Policy | None = None
    selector: Sequence[Requirement] = ()
    scope: Scope = Scope.NODE
    isolation: bool = False
    moments: Sequence[tuple[int, ...]] = field(init=False, compare=False)
    """By container, the moments at which its container runs; see `moments_of`."""
    shape: Shape = field(init=False, compare=False)
    whole_gpus: int = field(init=False, compare=False)
    """The most GPUs that the pod holds whole at any moment."""

    def __post_init__(self) -> None:
        if not self.containers:
            raise ValueError("a request has at least one container")
        # So that equal requests have equal hashes.
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
        """Bytes and core that the pod would hold of a GPU of that size if all its containers were
        on it; core None if none of them requests core."""
        capped = any(container.core_percent is not None for container in self.containers)
        core = self._peak(lambda each: each.core_percent or 0) if capped else None
        return self._peak(lambda each: each.bytes_of(total_bytes)), core

    def _peak(self, amount: Callable[[ContainerRequest], int]) -> int:
        """The most that the containers have of the amount at any moment."""
        sums = [0] * self.moment_count
        for container, moments in zip(self.containers, self.moments, strict=True):
            for moment in moments:
                sums[moment] += amount(container)
        return max(sums)


def moments_of(containers: Sequence[ContainerRequest]) -> Sequence[tuple[int, ...]]:
    """Return the moments of the pod's life at which each container runs, numbered from 0.

    There is one moment for each init container with a request, beside the sidecars started before
    it, and a last one for sidecars and main containers. A pod holds of a GPU the maximum over the
    moments of what its containers hold in each: Kubernetes' own rule.
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
    """Indices of the containers, the largest first: by number of GPUs, then by the amount of one.

    largest_bytes: of the GPUs in question, to compare bytes with percent.
    """

    def size_rank(number: int) -> tuple[int, float, int]:
        container = request.containers[number]
        size = container.bytes_of(largest_bytes) / largest_bytes
        return (-container.gpus, -(size + (container.core_percent or 0) / WHOLE_PERCENT), number)

    return sorted(range(len(request.containers)), key=size_rank)
