"""Input and output of a dialect's reader. Pure.

A reader turns the fields of one pod into a Reading. It reads only its own names; None: the pod
requests no share in this dialect. An invalid request raises RequestError, whose text is for the
pod's author.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gpuslice.contract import names, quantity
from scheduler.core.fleet import Gpu
from scheduler.core.place import Placement
from scheduler.core.request import ContainerRequest, Phase, Policy, Requirement, Scope

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


def amount(container: Container, name: str, written: object, whole: bool = True) -> int:
    """The amount written for the resource; 0: not requested, as in Kubernetes. whole: refuses a
    fraction, which is rounded up otherwise. The API server refuses it too, but the pod may not have
    passed it. Raises RequestError."""
    where = f"container {container.name}: {name}"
    found = quantity.parse(written)
    if isinstance(found, quantity.Invalid):
        raise RequestError(f"{where}: {found.reason}")
    if isinstance(found, quantity.Absent):
        return 0
    if whole and found.rounded:
        raise RequestError(f"{where}: invalid value {written}: must be a whole number")
    return found.amount


def is_in_bytes(written: object) -> bool:
    """Whether the amount has a unit of bytes (8Gi) where a number of MiB is expected."""
    return str(written).endswith("i")


POLICIES: Final = {policy.value: policy for policy in (Policy.BINPACK, Policy.SPREAD)}
"""Policies that a pod may choose."""


def policy(annotations: Mapping[str, str], key: str = names.ANNOTATION_POLICY) -> Policy | None:
    """The policy in the annotation; None: there is none. Raises RequestError."""
    text = annotations.get(key)
    if text is None:
        return None
    if text not in POLICIES:
        raise RequestError(
            f"metadata.annotations[{key}]: invalid value {text!r}: must be one of"
            f" {', '.join(POLICIES)}"
        )
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
    foreign: frozenset[str] = frozenset()
    notices: Sequence[str] = ()
    outputs: Writer = no_outputs


Reader = Callable[[PodFields], Reading | None]
