"""Shares that a bound pod holds of its node's GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gpuslice.contract import grants, names
from scheduler.kubernetes import translate
from scheduler.kubernetes.facts import HeldGpu, Unreadable
from tests.scheduler.kubernetes.requests_scene import HALF, refused, request
from tests.scheduler.objects import Gi, allocated, container, pod, resources


def held(raw: dict[str, Any]) -> tuple[object, str]:
    facts = translate.pod(raw)
    return facts.held, facts.problem


def bound(annotations: dict[str, str], *containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return pod(*(containers or (HALF,)), node="n1", annotations=annotations, **more)


def granted(**containers: Sequence[tuple[str, int, int, int]]) -> str:
    return grants.encode(
        {name: [grants.GpuGrant(*each) for each in gpus] for name, gpus in containers.items()}
    )


ALLOCATED, GRANTS = names.ANNOTATION_DEVICE_ALLOCATED, names.ANNOTATION_GRANTS
FULL = resources(core="50", memory="12Gi", ratio="50")
OLD = {"kubernetes.io/gpu-core": 5, "kubernetes.io/gpu-memory": "1Ki"}
MAIN = {"main": [("GPU-a", 0, 400, 10)]}
HELD: dict[str, tuple[dict[str, str], HeldGpu, str]] = {
    "Koordinator's": (
        {ALLOCATED: allocated(("GPU-a", 3, FULL))},
        HeldGpu("GPU-a", 3, 12 * Gi, 50, 50),
        "",
    ),
    "without a UUID": (
        {ALLOCATED: allocated((None, 1, resources(memory=1024)))},
        HeldGpu(None, 1, 1024, None, 0),
        "",
    ),
    "a ratio alone": (
        {ALLOCATED: allocated(("GPU-a", 1, resources(ratio=33)))},
        HeldGpu("GPU-a", 1, None, None, 33),
        "",
    ),
    "old names": ({ALLOCATED: allocated((None, 1, OLD))}, HeldGpu(None, 1, 1024, 5, 0), ""),
    "too much": (
        {ALLOCATED: allocated((None, 1, resources(memory=2**62, core=900)))},
        HeldGpu(None, 1, 2**48, 100, 0),
        "",
    ),
    "a container that the pod lacks, as running throughout": (
        {GRANTS: granted(**MAIN, unknown=[("GPU-a", 0, 200, 20)])},
        HeldGpu("GPU-a", 0, 600, 30),
        "",
    ),
    "the allocation beside unreadable grants": (
        {ALLOCATED: allocated(("GPU-a", 0, resources(memory=1024))), GRANTS: "{}"},
        HeldGpu("GPU-a", 0, 1024, None),
        "annotation gpuslice.io/grants: ",
    ),
    "the grants beside an unreadable allocation": (
        {ALLOCATED: "{", GRANTS: granted(**MAIN)},
        HeldGpu("GPU-a", 0, 400, 10),
        "annotation scheduling.koordinator.sh/device-allocated: ",
    ),
}


@pytest.mark.parametrize("what", HELD)
def test_a_bound_pod_holds(what: str) -> None:
    annotations, expected, problem = HELD[what]
    found, said = held(bound(annotations))
    assert found == (expected,)
    assert said.startswith(problem) and bool(said) == bool(problem)


def test_a_pod_of_ours_holds_the_most_that_runs_at_once() -> None:
    annotations = {
        names.ANNOTATION_DEVICE_ALLOCATED: allocated(
            ("GPU-a", 0, resources(core=90, memory=9000)), ("GPU-b", 1, resources(memory=300))
        ),
        names.ANNOTATION_GRANTS: granted(
            first=[("GPU-a", 0, 700, 70)],
            main=[("GPU-a", 0, 400, 10), ("GPU-b", 1, 200, 100)],
            other=[("GPU-a", 0, 200, 20)],
        ),
    }
    raw = bound(
        annotations, HALF, container("other", ratio=5), inits=[container("first", ratio=10)]
    )
    assert held(raw) == (
        (HeldGpu("GPU-a", 0, 700, 70), HeldGpu("GPU-b", 1, 200, None)),
        "",
    )


@pytest.mark.parametrize(
    "annotations",
    [
        {names.ANNOTATION_DEVICE_ALLOCATED: "{"},
        {names.ANNOTATION_DEVICE_ALLOCATED: allocated(("GPU-a", 0, resources(core=5)))},
        {names.ANNOTATION_GRANTS: "{"},
        {names.ANNOTATION_GRANTS: "{", names.ANNOTATION_DEVICE_ALLOCATED: "["},
    ],
)
def test_what_cannot_be_read_at_all_may_be_any_gpu(annotations: dict[str, str]) -> None:
    found, problem = held(bound(annotations))
    assert found == Unreadable(request(pod(HALF)))
    assert problem.startswith("annotation ")
    malformed = bound(annotations, container("main", core=50))
    assert held(malformed)[0] == Unreadable(None)
    assert held(bound(annotations, {"name": "main"}))[0] == ()


def test_a_bound_pods_old_names_are_read() -> None:
    """Koordinator's own scheduler bound it; an unbound pod with these names is refused."""
    old = {"kubernetes.io/gpu-core": 50, "kubernetes.io/gpu-memory-ratio": 50}
    asking = {"name": "main", "resources": {"limits": old, "requests": old}}
    found, _ = held(bound({names.ANNOTATION_DEVICE_ALLOCATED: "{"}, asking))
    assert found == Unreadable(request(pod(container("main", core=50, ratio=50))))
    assert "must be koordinator.sh/gpu-core" in refused(pod(asking))


@pytest.mark.parametrize("annotations", [{}, {names.ANNOTATION_DEVICE_ALLOCATED: '{"rdma":[]}'}])
def test_bound_by_hand_without_an_allocation(annotations: dict[str, str]) -> None:
    """The node agent injects no GPU, so the pod holds none."""
    assert held(bound(annotations)) == ((), "bound without an allocation: it has no GPU")
    assert held(bound(annotations, container("main", core=50)))[1]
    assert held(bound(annotations, {"name": "main"})) == ((), "")


def test_bound_by_hand_with_another_dialects_resources() -> None:
    """Such resources under another name are another scheduler's. A device plugin allocates whole
    GPUs."""
    for resource, problem in (("nvidia.com/gpumem", True), ("nvidia.com/gpu", False)):
        asking = {"name": "main", "resources": {"limits": {resource: "1"}}}
        raw = bound({}, asking)
        assert held(raw) == ((), "")
        raw["spec"]["schedulerName"] = names.SCHEDULER_NAME
        assert bool(held(raw)[1]) == problem


def test_an_allocation_on_a_pod_that_is_not_bound_is_nothing() -> None:
    text = allocated(("GPU-a", 0, resources(memory=1024)))
    facts = translate.pod(pod(HALF, annotations={names.ANNOTATION_DEVICE_ALLOCATED: text}))
    assert (facts.node, facts.held) == ("", ())
    assert (facts.uid, facts.namespace, facts.name) == ("u-1", "default", "pod-u-1")


@pytest.mark.parametrize(
    "fields",
    [
        {"annotations": {"mps": "true"}},
        {"annotations": {"gpu-memory": "16Gi"}},
        {"annotations": {"gpu-fraction": "0.5"}},
        {"spec": {"schedulerName": "kai-scheduler"}, "annotations": {"gpu-fraction": "0.5"}},
        {"resources": {"volcano.sh/gpu-memory": 1024}},
        {"resources": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}},
    ],
    ids=str,
)
def test_a_bound_pod_of_another_scheduler_is_no_problem(fields: dict[str, Any]) -> None:
    """It has no allocation of ours, and its request is another scheduler's."""
    asked = {"name": "main", "resources": {"limits": fields.get("resources", {})}}
    raw = pod(asked, node="n0", annotations=fields.get("annotations", {}))
    raw["spec"] |= fields.get("spec", {})
    assert translate.pod(raw).problem == ""
