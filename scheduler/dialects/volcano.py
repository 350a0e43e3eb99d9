"""Volcano's dialect: the resources gpu-memory and gpu-number, and the vgpu resources.

Only limits are read, as in Volcano. The API server requires a request of these resources to equal
the limit. A value that Volcano would read as zero or reduce to its maximum is refused. Source:
volcano pkg/scheduler/api/devices/nvidia (gpushare, vgpu), devices pkg/plugin/nvidia.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

from gpuslice.contract import dialects
from gpuslice.contract.dialects import (
    VOLCANO_MEMORY,
    VOLCANO_NUMBER,
    VOLCANO_VGPU_CORES,
    VOLCANO_VGPU_MEMORY,
    VOLCANO_VGPU_NUMBER,
    VOLCANO_VGPU_PERCENT,
)
from scheduler.core.fleet import Gpu
from scheduler.core.place import Placement
from scheduler.core.request import WHOLE_PERCENT, ContainerRequest, Policy, Scope, ratio_of_percent
from scheduler.dialects.reading import (
    GPUS,
    MIB,
    MIB_BYTES,
    PERCENT,
    Bound,
    Container,
    Outputs,
    PodFields,
    Reading,
    invalid,
)

_BOUNDS: Final[Mapping[str, Bound]] = {
    VOLCANO_MEMORY: MIB,
    VOLCANO_NUMBER: GPUS,
    VOLCANO_VGPU_NUMBER: GPUS,
    VOLCANO_VGPU_MEMORY: MIB,
    VOLCANO_VGPU_PERCENT: PERCENT,
    VOLCANO_VGPU_CORES: PERCENT,
}
_ALONE: Final = frozenset({VOLCANO_MEMORY, VOLCANO_NUMBER})
"""Resources that each form a kind of request. All other resources together are the kind vgpu."""
_VGPU: Final = ""


def read(pod: PodFields) -> Reading | None:
    requesting = [(each, amounts) for each in pod.containers if (amounts := _amounts(each))]
    if not requesting:
        return None
    of_pod = [name for name in _BOUNDS if any(name in amounts for _, amounts in requesting)]
    _refuse_mixed(of_pod)
    kind = _kind(of_pod[0])
    return Reading(
        containers=[_container_request(each, amounts) for each, amounts in requesting],
        policy=None if kind == _VGPU else Policy.FIRST,
        scope=Scope.DEVICE if kind == VOLCANO_MEMORY else Scope.NODE,
        outputs=outputs,
    )


def _amounts(container: Container) -> Mapping[str, int]:
    """Return the container's amounts. Refuse vgpu amounts without a number of GPUs, because Volcano
    would then give no GPU. Memory without a number is accepted: it means one GPU."""
    amounts = container.amounts(container.limits, _BOUNDS)
    vgpu = [name for name in amounts if name not in _ALONE]
    if vgpu and VOLCANO_VGPU_NUMBER not in amounts:
        if VOLCANO_VGPU_NUMBER in container.limits:
            must_be = f"{GPUS.allowed} in a container with {vgpu[0]}"
            raise invalid(container.field(VOLCANO_VGPU_NUMBER), 0, must_be)
        if VOLCANO_VGPU_MEMORY not in amounts:
            must_be = f"used with {VOLCANO_VGPU_NUMBER}; set {VOLCANO_VGPU_NUMBER}: 1"
            raise invalid(container.field(vgpu[0]), amounts[vgpu[0]], must_be)
    return amounts


def _refuse_mixed(of_pod: Sequence[str]) -> None:
    """Refuse a pod that mixes kinds of requests. of_pod: its resources, in the order of _BOUNDS."""
    first = of_pod[0]
    for second in of_pod:
        if _kind(second) != _kind(first):
            why = (
                "can not define true in both gpu sharing and gpu number"
                if second == VOLCANO_NUMBER
                else "gpu-share and vgpu can't be used together"
            )
            raise invalid("spec", f"{first} and {second}", f"one of them; {why}")


def _kind(name: str) -> str:
    return name if name in _ALONE else _VGPU


def _container_request(container: Container, amounts: Mapping[str, int]) -> ContainerRequest:
    if VOLCANO_MEMORY in amounts:
        return container.request(1, None, amounts[VOLCANO_MEMORY] * MIB_BYTES)
    if VOLCANO_NUMBER in amounts:
        whole = Fraction(1)
        return container.request(amounts[VOLCANO_NUMBER], WHOLE_PERCENT, memory_ratio=whole)
    of_each = amounts.get(VOLCANO_VGPU_NUMBER, 1), amounts.get(VOLCANO_VGPU_CORES)
    if VOLCANO_VGPU_PERCENT not in amounts and VOLCANO_VGPU_MEMORY in amounts:
        return container.request(*of_each, amounts[VOLCANO_VGPU_MEMORY] * MIB_BYTES)
    ratio = ratio_of_percent(amounts.get(VOLCANO_VGPU_PERCENT, WHOLE_PERCENT))
    return container.request(*of_each, memory_ratio=ratio)


def outputs(placement: Placement, gpus: Sequence[Gpu], now_ns: int) -> Outputs:
    """Return Volcano's own annotations and variables. The variables describe a single GPU, so a
    container with several GPUs gets none, as in Volcano."""
    total_bytes = {gpu.uuid: gpu.total_bytes for gpu in gpus}
    containers = [share.container for share in placement.shares]
    return Outputs(
        annotations={
            dialects.VOLCANO_INDEX: ",".join(
                str(peak.minor) for peak in placement.peaks if peak.memory_bytes
            ),
            dialects.VOLCANO_TIME: str(now_ns),
        },
        environment={
            share.container: {
                dialects.VOLCANO_ALLOCATED: str(share.memory_bytes // MIB_BYTES),
                dialects.VOLCANO_TOTAL: str(total_bytes[share.uuid] // MIB_BYTES),
            }
            for share in placement.shares
            if containers.count(share.container) == 1
        },
        visible_devices="index",
    )
