"""Input and output of a dialect's reader. Pure.

A reader turns the fields of one pod into a Reading. It reads only its own names; None: the pod
requests no share in this dialect. An invalid request raises RequestError, whose text is for the
pod's author.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final, NamedTuple

from gpuslice.contract import names, quantity
from scheduler.core.fleet import MAX_BYTES, Gpu
from scheduler.core.place import Placement
from scheduler.core.request import (
    WHOLE_PERCENT,
    ContainerRequest,
    Phase,
    Policy,
    Requirement,
    Scope,
)

Json = Mapping[str, Any]
Writer = Callable[[Placement, Sequence[Gpu], int], "Outputs"]
"""Given the placement, the node's GPUs and nanoseconds since the epoch."""

FOREIGN: Final = frozenset((*names.RESOURCES_WHOLE, *names.RESOURCES_KOORDINATOR_ONLY))
"""Resources that another component allocates, in every dialect that does not define them."""

MAX_REFUSAL: Final = 1024
"""Characters, as in an event. The extender repeats a refusal for each candidate node."""
_CUT: Final = " ... "


class RequestError(ValueError):
    """The request is invalid as written, on any node. A long text, which has a long value of the
    pod's author in its middle, is cut there."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_REFUSAL:
            half = (MAX_REFUSAL - len(_CUT)) // 2
            text = text[:half] + _CUT + text[-half:]
        super().__init__(text)


def invalid(field: str, value: object, must_be: str) -> RequestError:
    """An error in Kubernetes' form."""
    return RequestError(f"{field}: invalid value {value}: must be {must_be}")


def annotation(key: str) -> str:
    """The annotation's field, for errors."""
    return f"metadata.annotations[{key}]"


@dataclass(frozen=True, slots=True)
class Container:
    """order: its index among the init containers, sidecars included; of MAIN ones among the main.
    limits, requests: quantities by resource name, as written. privileged: its securityContext."""

    name: str
    phase: Phase
    order: int
    limits: Json
    requests: Json
    privileged: bool = False

    def request(
        self,
        gpus: int,
        core_percent: int | None,
        memory_bytes: int | None = None,
        memory_ratio: Fraction | None = None,
    ) -> ContainerRequest:
        amounts = (gpus, core_percent, memory_bytes, memory_ratio)
        return ContainerRequest(self.name, self.phase, self.order, *amounts)

    def field(self, resource: str) -> str:
        """The field of the resource, for errors."""
        return f"container {self.name}: {resource}"

    def amount(self, resource: str, written: object) -> int:
        """The amount written for the resource, rounded up; 0: not requested, as in Kubernetes.
        Raises RequestError."""
        parsed = quantity.parse(written)
        if isinstance(parsed, quantity.Invalid):
            raise RequestError(f"{self.field(resource)}: {parsed.reason}")
        return parsed.amount if isinstance(parsed, quantity.Value) else 0

    def amounts(self, written: Json, bounds: Mapping[str, Bound]) -> Mapping[str, int]:
        """The amounts above zero, by resource, in the order of bounds. written: as limits. Raises
        RequestError."""
        amounts = {name: self.amount(name, written.get(name)) for name in bounds}
        for name, bound in bounds.items():
            # An amount of MiB with a unit of bytes (8Gi) was meant as bytes.
            in_bytes = bound is MIB and str(written.get(name)).endswith("i")
            if amounts[name] > bound.most or in_bytes:
                raise invalid(self.field(name), written[name], bound.allowed)
        return {name: requested for name, requested in amounts.items() if requested}


class Bound(NamedTuple):
    """The largest amount of a resource, and the allowed ones as in a refusal."""

    most: int
    allowed: str


MIB_BYTES: Final = 1 << 20
_MAX_MIB: Final = MAX_BYTES // MIB_BYTES
MIB: Final = Bound(_MAX_MIB, f"1 to {_MAX_MIB} MiB, a number without a unit")
GPUS: Final = Bound(names.MAX_GPUS, f"1 to {names.MAX_GPUS}")
PERCENT: Final = Bound(WHOLE_PERCENT, f"1 to {WHOLE_PERCENT}")

POLICIES: Final = {policy.value: policy for policy in (Policy.BINPACK, Policy.SPREAD)}
"""Policies that a pod may choose."""


def policy(annotations: Mapping[str, str], key: str = names.ANNOTATION_POLICY) -> Policy | None:
    """The policy in the annotation; None: there is none. Raises RequestError."""
    text = annotations.get(key)
    if text is None:
        return None
    if text not in POLICIES:
        raise invalid(annotation(key), repr(text), f"one of {', '.join(POLICIES)}")
    return POLICIES[text]


@dataclass(frozen=True, slots=True)
class PodFields:
    """Everything in a pod that determines its request. labels: the one that requests isolation, if
    any. containers: init containers first."""

    scheduler_name: str
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    overhead: Json
    containers: Sequence[Container]


@dataclass(frozen=True, slots=True)
class Outputs:
    """A Binding's additions for the dialect's own readers. annotations: of the pod. environment: by
    container name, only of containers with a share. visible_devices: NVIDIA_VISIBLE_DEVICES in
    these containers; "index": the GPU's minor where the agent injects the device, else the
    UUID, as always."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    visible_devices: str = "uuid"


def no_outputs(placement: Placement, gpus: Sequence[Gpu], now_ns: int) -> Outputs:
    return Outputs()


@dataclass(frozen=True, slots=True)
class Reading:
    """A pod's request. containers: at least one.

    foreign: names of resources that this dialect does not allocate, and a pod must not request
    beside it. notices: texts for an event of the pod. outputs: what the Binding adds, given the
    placement, the node's GPUs (total_bytes of each) and nanoseconds since the epoch; called once.
    """

    containers: Sequence[ContainerRequest]
    policy: Policy | None = None
    selector: Sequence[Requirement] = ()
    scope: Scope = Scope.NODE
    isolation: bool = True
    foreign: frozenset[str] = FOREIGN
    notices: Sequence[str] = ()
    outputs: Writer = no_outputs


Reader = Callable[[PodFields], Reading | None]
