"""The state as JSON for people and as metrics."""

from __future__ import annotations

from gpuslice.contract import names
from scheduler.decisions import view
from scheduler.decisions.simulate import fleet, simulate
from scheduler.decisions.state import State
from scheduler.kubernetes import translate
from tests.scheduler.objects import Gi, container, device, gpu, node, pod


def a_state() -> State:
    return fleet(
        [
            {"kind": "Node", **node("n1", cordoned_gpus="GPU-b")},
            {"kind": "Node", **node("n2")},
            {**device("n1", gpu("GPU-a", 0), gpu("GPU-b", 1))},
        ]
    )


def test_each_gpu_and_its_holders() -> None:
    state = a_state()
    simulate(state, pod(container("main", ratio=50)))
    assert view.names_of(state) == ["n1", "n2"]
    assert view.names_of(state, "n2") == ["n2"]
    (node,) = view.nodes(state, ["gone", "n1"])
    first, second = node["gpus"]
    assert (node["reason"], node["isolates"]) == ("FITS", True)
    assert first["holders"] == [
        {
            "pod": "default/pod-u-1",
            "uid": "simulated-0",
            "memory_bytes": 12 * Gi,
            "core_percent": None,
            "assumed": True,
        }
    ]
    assert (first["granted_bytes"], first["shares_without_core"]) == (12 * Gi, 1)
    assert second["usable"] is False and second["holders"] == []


def test_problems_name_node_and_pod() -> None:
    state = a_state()
    broken = {names.ANNOTATION_DEVICE_ALLOCATED: "{"}
    asks = pod(container("main", ratio=50), node="n1", annotations=broken)
    state.observe_pod(translate.pod(asks))
    (problem,) = view.problems(state)
    assert (problem["node"], problem["pod"]) == ("n1", "default/pod-u-1")
    assert state.problems()[0].uid == "u-1"
