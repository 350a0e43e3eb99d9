"""The state of one node of two GPUs, events for it, and what the state then has."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from gpuslice.contract import names
from scheduler.core.fit import fit
from scheduler.core.place import Placement, place
from scheduler.core.reasons import Reason
from scheduler.core.request import ContainerRequest, Request
from scheduler.decisions.state import State
from scheduler.kubernetes import translate
from scheduler.kubernetes.facts import PodFacts
from scheduler.kubernetes.leases import agent_lease
from tests.scheduler import calls
from tests.scheduler.objects import (
    Gi,
    allocated,
    container,
    gpu,
    pod,
    resources,
)

HALF = Request([ContainerRequest("main", core_percent=50, memory_ratio=Fraction(1, 2))])
ANY = Request([ContainerRequest("main", memory_bytes=1)])


def observe_node(state: State, raw: dict[str, Any]) -> None:
    state.observe_node(translate.node(raw))


def observe_device(state: State, raw: dict[str, Any]) -> None:
    state.observe_device(translate.device(raw))


def observe_lease(state: State, raw: dict[str, Any], now_s: float = 0.0) -> None:
    read = agent_lease(raw)
    assert read is not None
    state.observe_lease(read, now_s)


def made(*gpus: dict[str, Any]) -> State:
    """One node, n1, with these GPUs; by default GPU-a and GPU-b."""
    state = State()
    calls.add_node(state, "n1", *(gpus or (gpu("GPU-a", 0), gpu("GPU-b", 1))))
    return state


def holding(
    uid: str,
    uuid: str | None = "GPU-a",
    minor: int = 0,
    node_name: str = "n1",
    phase: str = "Running",
    **held: object,
) -> PodFacts:
    text = allocated((uuid, minor, resources(**(held or {"memory": "12Gi", "core": 50}))))
    annotations = {names.ANNOTATION_DEVICE_ALLOCATED: text}
    raw = pod(
        container("main", ratio=50), uid=uid, node=node_name, phase=phase, annotations=annotations
    )
    return translate.pod(raw)


def used(state: State, name: str = "n1") -> dict[str, tuple[int, int, int]]:
    """Return GiB, percent and shares without core, by GPU."""
    fleet, row = state.fleet, state.fleet.row_of(name)
    return {
        gpu.uuid: (
            int(fleet.used_bytes[row, slot]) // Gi,
            int(fleet.used_core[row, slot]),
            int(fleet.uncapped_shares[row, slot]),
        )
        for slot, gpu in enumerate(fleet.gpus[row])
    }


def reason(state: State, request: Request = ANY, name: str = "n1") -> Reason:
    _, reasons = fit(state.fleet, request, state.fleet.rows_of([name]))
    return Reason(int(reasons[0]))


def chosen(state: State, request: Request = HALF, name: str = "n1") -> Placement:
    found = place(state.fleet, request, state.fleet.row_of(name))
    assert isinstance(found, Placement)
    return found


def texts(state: State) -> list[str]:
    return [f"{each.node} {each.about} {each.text}".strip() for each in state.problems()]


NONE = {"GPU-a": (0, 0, 0), "GPU-b": (0, 0, 0)}
HALF_OF_A = {"GPU-a": (12, 50, 0), "GPU-b": (0, 0, 0)}
