"""The input and the output of a dialect's reader.

A reader turns the fields of one pod into a Reading. It reads only its dialect's keys, and returns
None if the pod requests no share by them. The text of a RequestError is for the pod's author.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final, NamedTuple

from gpuslice.contract import names, quantity
from gpuslice.contract.dialects import LEAST_MIB, MODES
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
"""A function of the placement, the node's GPUs and the nanoseconds since the epoch."""

FOREIGN: Final = frozenset((*names.RESOURCES_WHOLE, *names.RESOURCES_KOORDINATOR_ONLY))
"""Resources that another component allocates, unless the pod's dialect defines them."""

MAX_REFUSAL: Final = 1024
"""The most characters, as in an event. The extender repeats a refusal for each candidate node."""
_CUT: Final = " ... "


class RequestError(ValueError):
    """The request is invalid on any node. A long text is shortened in the middle, where it quotes
    the pod's author."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_REFUSAL:
            half = (MAX_REFUSAL - len(_CUT)) // 2
            text = text[:half] + _CUT + text[-half:]
        super().__init__(text)


def invalid(field: str, value: object, must_be: str) -> RequestError:
    """Return an error in Kubernetes' form."""
    return RequestError(f"{field}: invalid value {value}: must be {must_be}")


def annotation(key: str) -> str:
    """Return the name of the annotation's field, for errors."""
    return f"metadata.annotations[{key}]"


@dataclass(frozen=True, slots=True)
class Container:
    """A container as its pod describes it. order: see ContainerRequest. limits, requests:
    quantities by resource name, as written. privileged: from its securityContext. core_policy: its
    variable dialects.HAMI_CORE_POLICY, or ""."""

    name: str
    phase: Phase
    order: int
    limits: Json
    requests: Json
    privileged: bool = False
    core_policy: str = ""

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
        """Return the name of the resource's field, for errors."""
        return f"container {self.name}: {resource}"

    def amount(self, resource: str, written: object) -> int:
        """Return the written amount, rounded up; 0 if not requested. Raise RequestError."""
        parsed = quantity.parse(written)
        if isinstance(parsed, quantity.Invalid):
            raise RequestError(f"{self.field(resource)}: {parsed.reason}")
        return parsed.amount if isinstance(parsed, quantity.Value) else 0

    def amounts(self, written: Json, bounds: Mapping[str, Bound]) -> Mapping[str, int]:
        """Return the amounts above zero, by resource, in the order of `bounds`. written: quantities
        by resource name. Raise RequestError."""
        amounts = {name: self.amount(name, written.get(name)) for name in bounds}
        for name, bound in bounds.items():
            # These resources count MiB, without a unit. A value like 8Gi was meant as bytes.
            in_bytes = "MiB" in bound.allowed and str(written.get(name)).endswith("i")
            if amounts[name] > bound.most or 0 < amounts[name] < bound.least or in_bytes:
                raise invalid(self.field(name), written[name], bound.allowed)
        return {name: requested for name, requested in amounts.items() if requested}


class Bound(NamedTuple):
    """most, least: the largest and the smallest amount of a resource, besides 0. allowed: the
    error's text on the allowed amounts."""

    most: int
    allowed: str
    least: int = 1


MIB_BYTES: Final = 1 << 20
_MAX_MIB: Final = MAX_BYTES // MIB_BYTES
MIB: Final = Bound(_MAX_MIB, f"{LEAST_MIB} to {_MAX_MIB} MiB, a number without a unit", LEAST_MIB)
GPUS: Final = Bound(names.MAX_GPUS, f"1 to {names.MAX_GPUS}")
PERCENT: Final = Bound(WHOLE_PERCENT, f"1 to {WHOLE_PERCENT}")

POLICIES: Final = {policy.value: policy for policy in (Policy.BINPACK, Policy.SPREAD)}
"""The policies that a pod may choose, by name."""


def policy(annotations: Mapping[str, str], key: str = names.ANNOTATION_POLICY) -> Policy | None:
    """Return the policy in the annotation, or None without the annotation. Raise RequestError."""
    text = annotations.get(key)
    if text is None:
        return None
    if text not in POLICIES:
        raise invalid(annotation(key), repr(text), f"one of {', '.join(POLICIES)}")
    return POLICIES[text]


def check_modes(annotations: Mapping[str, str]) -> None:
    """Refuse another mode of sharing than the library's, such as mig or mps."""
    for key in MODES:
        text = annotations.get(key, names.ISOLATION_PROVIDER)
        if text != names.ISOLATION_PROVIDER:
            must_be = f"{names.ISOLATION_PROVIDER}, as gpuslice shares GPUs without MIG and MPS"
            raise invalid(annotation(key), repr(text), must_be)


@dataclass(frozen=True, slots=True)
class PodFields:
    """All fields of a pod that determine its request. labels: only the label that requests
    isolation, if the pod has it. containers: init containers first."""

    scheduler_name: str
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    overhead: Json
    containers: Sequence[Container]


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a Binding adds for programs that read the dialect's own keys. annotations: for the pod.
    environment: variables by name of a container with a share. visible_devices: what
    NVIDIA_VISIBLE_DEVICES has in these containers. It is always the UUID for "uuid". For "index",
    it is the GPU's minor where the agent injects the device, else the UUID."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    visible_devices: str = "uuid"


def no_outputs(placement: Placement, gpus: Sequence[Gpu], now_ns: int) -> Outputs:
    return Outputs()


@dataclass(frozen=True, slots=True)
class Reading:
    """A pod's request. containers: at least one.

    foreign: names of resources that this dialect does not allocate. A pod with a share must not
    request them. notices: texts for an Event. outputs: returns what the Binding adds; called once.
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
