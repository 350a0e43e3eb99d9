"""Objects as values of the core: a pod's shares, a node, its GPUs and its agent's Lease."""

from __future__ import annotations

from typing import Any

import pytest

from gpuslice.contract import grants, names
from scheduler.core.fleet import Gpu
from scheduler.kubernetes import requests, translate
from scheduler.kubernetes.facts import DeviceFacts, HeldGpu, LeaseFacts, NodeFacts, Unreadable
from scheduler.kubernetes.leases import agent_lease
from tests.scheduler.objects import allocated, container, device, gpu, lease, node, pod, resources
from tests.support import GIB

ALLOCATED, GRANTS = names.ANNOTATION_DEVICE_ALLOCATED, names.ANNOTATION_GRANTS
HALF = container("main", core=50, ratio=50)
NOT_READ = container("main", core=50)
NO_GPU = "bound without an allocation: it has no GPU"


def held(raw: dict[str, Any]) -> tuple[object, str]:
    facts = translate.pod(raw)
    return facts.held, facts.problem


def bound(annotations: dict[str, str], *containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return pod(*(containers or (HALF,)), node="n1", annotations=annotations, **more)


def granted(**containers: list[tuple[str, int, int, int]]) -> dict[str, str]:
    by_name = {name: [grants.GpuGrant(*g) for g in gpus] for name, gpus in containers.items()}
    return {GRANTS: grants.encode(by_name)}


def allocation(uuid: str | None, minor: int, held: dict[str, object]) -> dict[str, str]:
    return {ALLOCATED: allocated((uuid, minor, held))}


FULL = resources(core="50", memory="12Gi", ratio="50")
KIB, TOO_MUCH = resources(memory=1024), resources(memory=2**62, core=900)
MAIN = ("GPU-a", 0, 400, 10)
UNKNOWN = ("GPU-a", 0, 200, 20)
HELD: dict[str, tuple[dict[str, str], HeldGpu]] = {
    "Koordinator's": (allocation("GPU-a", 3, FULL), HeldGpu("GPU-a", 3, 12 * GIB, 50, 50)),
    "without a UUID": (allocation(None, 1, KIB), HeldGpu(None, 1, 1024, None)),
    "a ratio": (allocation("a", 1, resources(ratio=33)), HeldGpu("a", 1, None, None, 33)),
    "too much": (allocation(None, 1, TOO_MUCH), HeldGpu(None, 1, 2**48, 100)),
    "a container that the pod lacks, as running throughout": (
        granted(main=[MAIN], unknown=[UNKNOWN]),
        HeldGpu("GPU-a", 0, 600, 30),
    ),
}


@pytest.mark.parametrize("what", HELD)
def test_a_bound_pod_holds(what: str) -> None:
    annotations, expected = HELD[what]
    assert held(bound(annotations)) == ((expected,), "")


def test_a_container_without_core_beside_one_with_core_holds_none() -> None:
    """A grant of 100 percent of an allocation of less is only a limit."""
    core = allocation("GPU-a", 0, resources(core=50, memory=600))
    annotations = core | granted(main=[("GPU-a", 0, 400, 50)], other=[("GPU-a", 0, 200, 100)])
    found = HeldGpu("GPU-a", 0, 600, 50), HeldGpu("GPU-a", 0, 0, None)
    assert held(bound(annotations, HALF, container("other", ratio=5))) == (found, "")


def test_of_two_annotations_the_one_that_can_be_read_counts() -> None:
    found, problem = held(bound({**allocation("GPU-a", 0, KIB), GRANTS: "{}"}))
    assert found == (HeldGpu("GPU-a", 0, 1024, None),)
    assert problem.startswith(f"annotation {GRANTS}: ")
    found, problem = held(bound({**granted(main=[MAIN]), ALLOCATED: "{"}))
    assert found == (HeldGpu("GPU-a", 0, 400, 10),)
    assert problem.startswith(f"annotation {ALLOCATED}: ")


def test_a_pod_of_ours_holds_the_most_that_runs_at_once() -> None:
    entries = ("GPU-a", 0, resources(core=90, memory=9000)), ("GPU-b", 1, resources(memory=300))
    annotations = {ALLOCATED: allocated(*entries)} | granted(
        first=[("GPU-a", 0, 700, 70)],
        main=[MAIN, ("GPU-b", 1, 200, 100)],
        other=[("GPU-a", 0, 200, 20)],
    )
    inits = [container("first", ratio=10)]
    raw = bound(annotations, HALF, container("other", ratio=5), inits=inits)
    assert held(raw) == ((HeldGpu("GPU-a", 0, 700, 70), HeldGpu("GPU-b", 1, 200, None)), "")


@pytest.mark.parametrize(
    "annotations",
    [
        {ALLOCATED: "{"},
        {ALLOCATED: allocated(("GPU-a", 0, resources(core=5)))},
        {GRANTS: "{"},
        {GRANTS: "{", ALLOCATED: "["},
    ],
)
def test_what_cannot_be_read_at_all_may_be_any_gpu(annotations: dict[str, str]) -> None:
    found, problem = held(bound(annotations))
    assert found == Unreadable(requests.request(pod(HALF)))
    assert problem.startswith("annotation ")
    assert held(bound(annotations, NOT_READ))[0] == Unreadable(None)
    assert held(bound(annotations, {"name": "main"}))[0] == ()


def test_a_bound_pods_old_names_are_read() -> None:
    """Koordinator's scheduler binds pods with old resource names. Such unbound pods are refused."""
    old = {"kubernetes.io/gpu-core": 50, "kubernetes.io/gpu-memory-ratio": 50}
    new = {key.replace("kubernetes.io", "koordinator.sh"): value for key, value in old.items()}
    for limits in (old, {**new, **dict.fromkeys(old, 60)}):  # the new name has precedence
        asking = {"name": "main", "resources": {"limits": limits, "requests": limits}}
        assert held(bound({ALLOCATED: "{"}, asking))[0] == Unreadable(requests.request(pod(HALF)))


@pytest.mark.parametrize("annotations", [{}, {ALLOCATED: '{"rdma":[]}'}])
def test_bound_by_hand_without_an_allocation(annotations: dict[str, str]) -> None:
    """The node agent injects no GPU without an allocation, so the pod holds none."""
    assert held(bound(annotations)) == ((), NO_GPU)
    assert held(bound(annotations, NOT_READ))[1]
    assert held(bound(annotations, {"name": "main"})) == ((), "")


def test_an_allocation_on_a_pod_that_is_not_bound_is_nothing() -> None:
    annotations = allocation("GPU-a", 0, resources(memory=1024))
    facts = translate.pod(pod(HALF, annotations=annotations))
    assert (facts.node, facts.held) == ("", ())
    assert (facts.uid, facts.namespace, facts.name) == ("u-1", "default", "pod-u-1")


def test_a_bound_pods_mark_changes_with_what_it_holds() -> None:
    pods = [bound({}), pod(HALF, node="n2"), bound({}, phase="Failed"), bound({ALLOCATED: "{"})]
    marks = [translate.mark(raw) for raw in [*pods, bound({}, labels={"a": "b"})]]
    ending, waiting = bound({}), pod(HALF)
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    marks += [translate.mark(raw) for raw in (ending, waiting)]
    assert len({*marks}) == len(marks)
    assert translate.mark(bound({})) == marks[0]


def test_a_waiting_pods_mark_changes_with_its_nomination_and_deletion() -> None:
    waiting, refused, nominated, deleted = (pod(HALF) for _ in range(4))
    refused["status"]["conditions"] = [{"type": "PodScheduled"}]
    nominated["status"]["nominatedNodeName"] = "n1"
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    marks = [translate.mark(raw) for raw in (waiting, nominated, deleted)]
    assert len({*marks}) == len(marks)
    assert translate.mark(refused) == marks[0]


@pytest.mark.parametrize(
    ("annotations", "limits", "scheduler", "problem"),
    [
        ({}, {"nvidia.com/gpumem": "1"}, names.SCHEDULER_NAME, NO_GPU),
        ({}, {"nvidia.com/gpu": "1"}, names.SCHEDULER_NAME, ""),  # requested from a device plugin
        ({}, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}, "", ""),
        ({}, {"volcano.sh/gpu-memory": "1024"}, "", ""),
        ({"gpu-fraction": "0.5"}, {}, "kai-scheduler", ""),
    ],
    ids=str,
)
def test_bound_by_hand_or_by_another_scheduler_in_another_dialect(
    annotations: dict[str, str], limits: dict[str, object], scheduler: str, problem: str
) -> None:
    # HAMi's dialect refuses privileged containers
    privileged = {"securityContext": {"privileged": True}}
    raw = bound(annotations, {"name": "main", "resources": {"limits": limits}, **privileged})
    raw["spec"]["schedulerName"] = scheduler
    assert held(raw) == ((), problem)


# --- nodes, inventories and Leases


def read(*gpus: dict[str, Any]) -> DeviceFacts:
    return translate.device(device("n1", *gpus, node_uid="uid-1"))


def test_a_node() -> None:
    raw = node("n1", "uid-1", cordoned_gpus="GPU-a, GPU-b,", excluded_gpus="GPU-c")
    withheld = frozenset({"GPU-a", "GPU-b"}), frozenset({"GPU-c"})
    assert translate.node(raw) == NodeFacts("n1", "uid-1", True, *withheld)
    assert not translate.node(node("n1", isolates=False)).isolates
    for policy, partitioned in (("Honor", True), ("Prefer", False)):
        raw["metadata"]["labels"]["node.koordinator.sh/gpu-partition-policy"] = policy
        assert translate.node(raw).partitioned is partitioned


def test_an_inventory() -> None:
    link = {"gpuslice.io/link": "x"}
    deprecated = {"resources": {"kubernetes.io/gpu-memory": "24Gi"}}
    facts = read(
        gpu("GPU-b", 1, "80Gi", root="pci0000:80", labels=link),
        gpu("GPU-a", 0, numa=-1, root="") | deprecated,
        {"type": "rdma", "id": "0000:1f:00.0", "minor": 0},
    )
    assert (facts.name, facts.node_uid, facts.readable, facts.problems) == ("n1", "uid-1", True, ())
    first, second = facts.gpus
    assert first == Gpu("GPU-a", 0, 24 * GIB)
    assert second == Gpu("GPU-b", 1, 80 * GIB, True, 0, "pci0000:80", "x", link)


@pytest.mark.parametrize("health", [False, None, "true"])
def test_a_gpu_that_is_not_reported_as_healthy_is_not_usable(health: object) -> None:
    (only,) = read(gpu("GPU-a", 0, health=health)).gpus
    assert not only.usable


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"id": ""}, 'id: invalid value "": must be the UUID of a GPU'),
        ({"id": 5}, "id: invalid value 5"),
        ({"minor": None}, "minor: required value: must be a whole number from 0"),
        ({"minor": True}, "minor: invalid value true"),
        ({"minor": -1}, "minor: invalid value -1"),
        ({"minor": 2**31}, "minor: invalid value 2147483648"),
        ({"resources": None}, "resources.koordinator.sh/gpu-memory: required value: must be a"),
        ({"resources": {"koordinator.sh/gpu-memory": "99"}}, 'value "99": must be a quantity from'),
        ({"resources": {"koordinator.sh/gpu-memory": "1Ei"}}, 'invalid value "1Ei": must be a'),
        ({"id": "GPU-b"}, 'id: invalid value "GPU-b": must be unique'),
    ],
)
def test_a_gpu_that_cannot_be_read_is_left_out(change: dict[str, object], text: str) -> None:
    facts = read(gpu("GPU-b", 1), {**gpu("GPU-a", 0), **change})
    assert [each.uuid for each in facts.gpus] == ["GPU-b"]
    (problem,) = facts.problems
    assert problem.startswith("Device: spec.devices[1]")
    assert text in problem


def test_more_gpus_than_a_node_can_have() -> None:
    assert read(*(gpu(f"GPU-{n}", n) for n in range(16))).problems == ()
    facts = read(*(gpu(f"GPU-{n}", n) for n in range(18)))
    assert [each.minor for each in facts.gpus] == list(range(16))
    assert facts.problems == ("Device: 18 GPUs; those behind the first 16 are left out",)


def test_an_inventory_without_a_list_is_empty() -> None:
    raw = device("n1")
    raw["spec"]["devices"] = None
    assert translate.device(raw) == DeviceFacts("n1", "uid-n1", ())


def test_an_agents_lease() -> None:
    for ready, said in (("true", ""), ("", "no reason given"), (None, "readiness not reported")):
        expected = LeaseFacts("n1", "2026-01-01T00:00:07.000000Z", said, 1767225607.0)
        assert agent_lease(lease("n1", 7, ready)) == expected
    raw = lease("n1")
    for written in (None, "", "soon", "2026-01-01T00:00:07"):
        raw["spec"]["renewTime"] = written
        assert agent_lease(raw) == LeaseFacts("n1", written or ""), "without a valid time"
    for key, value in (("namespace", "kube-node-lease"), ("name", names.LEASE_KUBE_SCHEDULER)):
        assert agent_lease({"metadata": raw["metadata"] | {key: value}}) is None
