"""Volcano's dialect: the gpu-memory and gpu-number of its GPU sharing, and its vgpu resources.

Pure. Only limits count, as in Volcano; the API server requires requests of these resources to equal
them. Zero is no request, as in Kubernetes. A value that Volcano takes for zero or cuts to its
maximum is refused. The policy gpuslice-volcano checks the same in CEL; the tests compare the texts.
Source: volcano pkg/scheduler/api/devices/nvidia (gpushare, vgpu), devices pkg/plugin/nvidia.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

from gpuslice.contract import dialects, names
from gpuslice.contract.dialects import (
    VOLCANO_MEMORY,
    VOLCANO_NUMBER,
    VOLCANO_VGPU_CORES,
    VOLCANO_VGPU_MEMORY,
    VOLCANO_VGPU_NUMBER,
    VOLCANO_VGPU_PERCENT,
)
from scheduler.core.fleet import MAX_BYTES, Gpu
from scheduler.core.place import Placement
from scheduler.core.request import WHOLE_PERCENT, ContainerRequest, Policy, Scope
from scheduler.dialects.reading import (
    FOREIGN,
    Container,
    Outputs,
    PodFields,
    Reading,
    RequestError,
    amount,
    is_in_bytes,
)

_MIB_SHIFT: Final = 20
_MIB: Final = " MiB, a number without a unit"
_LARGEST: Final[Mapping[str, tuple[int, str]]] = {
    VOLCANO_MEMORY: (MAX_BYTES >> _MIB_SHIFT, _MIB),
    VOLCANO_NUMBER: (names.MAX_GPUS, ""),
    VOLCANO_VGPU_NUMBER: (names.MAX_GPUS, ""),
    VOLCANO_VGPU_MEMORY: (MAX_BYTES >> _MIB_SHIFT, _MIB),
    VOLCANO_VGPU_PERCENT: (WHOLE_PERCENT, ""),
    VOLCANO_VGPU_CORES: (WHOLE_PERCENT, ""),
}
"""By resource, the largest value and its unit."""

_ALONE: Final = frozenset({VOLCANO_MEMORY, VOLCANO_NUMBER})
"""Each is a kind of request by itself; the other resources are vgpu's."""
_VGPU: Final = ""

Amounts = Mapping[str, int]


def read(pod: PodFields) -> Reading | None:
    requesting = [(each, amounts) for each in pod.containers if (amounts := _amounts(each))]
    if not requesting:
        return None
    of_pod = [name for name in _LARGEST if any(name in amounts for _, amounts in requesting)]
    _refuse_mixed(of_pod)
    kind = _kind(of_pod[0])
    return Reading(
        containers=[_container_request(each, amounts) for each, amounts in requesting],
        policy=None if kind == _VGPU else Policy.FIRST,
        scope=Scope.DEVICE if kind == VOLCANO_MEMORY else Scope.NODE,
        foreign=FOREIGN,
        outputs=outputs,
    )


def _amounts(container: Container) -> Amounts:
    amounts = {}
    for name, (most, unit) in _LARGEST.items():
        written = container.limits.get(name)
        requested = amount(container, name, written)
        if requested > most or (unit and is_in_bytes(written)):
            raise RequestError(
                f"container {container.name}: {name}: invalid value {written}: must be 1 to"
                f" {most}{unit}"
            )
        if requested:
            amounts[name] = requested
    _refuse_incomplete(container, amounts)
    return amounts


def _refuse_incomplete(container: Container, amounts: Amounts) -> None:
    """Volcano gives a container with vgpu amounts and no number no GPU at all, except for memory,
    which means one GPU."""
    vgpu = [name for name in amounts if name not in _ALONE]
    where = f"container {container.name}"
    if not vgpu or VOLCANO_VGPU_NUMBER in amounts:
        return
    if VOLCANO_VGPU_NUMBER in container.limits:
        raise RequestError(
            f"{where}: {VOLCANO_VGPU_NUMBER}: invalid value 0: must be 1 to {names.MAX_GPUS} in a"
            f" container with {vgpu[0]}"
        )
    if VOLCANO_VGPU_MEMORY not in amounts:
        raise RequestError(
            f"{where}: {vgpu[0]}: invalid value {amounts[vgpu[0]]}: must be used with"
            f" {VOLCANO_VGPU_NUMBER}; set {VOLCANO_VGPU_NUMBER}: 1"
        )


def _refuse_mixed(of_pod: Sequence[str]) -> None:
    """of_pod: in the order of _LARGEST."""
    first = of_pod[0]
    for second in of_pod:
        if _kind(second) != _kind(first):
            why = (
                "can not define true in both gpu sharing and gpu number"
                if second == VOLCANO_NUMBER
                else "gpu-share and vgpu can't be used together"
            )
            raise RequestError(
                f"spec: invalid value {first} and {second}: must be one of them; {why}"
            )


def _kind(name: str) -> str:
    return name if name in _ALONE else _VGPU


def _container_request(container: Container, amounts: Amounts) -> ContainerRequest:
    of = container.name, container.phase, container.order
    if VOLCANO_MEMORY in amounts:
        return ContainerRequest(*of, memory_bytes=amounts[VOLCANO_MEMORY] << _MIB_SHIFT)
    if VOLCANO_NUMBER in amounts:
        gpus = amounts[VOLCANO_NUMBER]
        return ContainerRequest(*of, gpus, core_percent=WHOLE_PERCENT, memory_ratio=Fraction(1))
    gpus, core_percent = amounts.get(VOLCANO_VGPU_NUMBER, 1), amounts.get(VOLCANO_VGPU_CORES)
    if VOLCANO_VGPU_PERCENT not in amounts and VOLCANO_VGPU_MEMORY in amounts:
        memory_bytes = amounts[VOLCANO_VGPU_MEMORY] << _MIB_SHIFT
        return ContainerRequest(*of, gpus, core_percent, memory_bytes=memory_bytes)
    ratio = Fraction(amounts.get(VOLCANO_VGPU_PERCENT, WHOLE_PERCENT), WHOLE_PERCENT)
    return ContainerRequest(*of, gpus, core_percent, memory_ratio=ratio)


def outputs(placement: Placement, gpus: Sequence[Gpu], now_ns: int) -> Outputs:
    """The variables are those of one GPU, so a container with several has none, as in Volcano."""
    total_bytes = {gpu.uuid: gpu.total_bytes for gpu in gpus}
    held = [share.container for share in placement.shares]
    return Outputs(
        annotations={
            dialects.VOLCANO_INDEX: ",".join(str(peak.minor) for peak in placement.peaks),
            dialects.VOLCANO_TIME: str(now_ns),
        },
        environment={
            share.container: {
                dialects.VOLCANO_ALLOCATED: str(share.memory_bytes >> _MIB_SHIFT),
                dialects.VOLCANO_TOTAL: str(total_bytes[share.uuid] >> _MIB_SHIFT),
            }
            for share in placement.shares
            if held.count(share.container) == 1
        },
        visible_devices="index",
    )
