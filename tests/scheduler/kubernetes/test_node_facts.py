"""A node, its GPUs and its agent's Lease as the core's values."""

from __future__ import annotations

import pytest

from gpuslice.contract import names
from scheduler.kubernetes import translate
from scheduler.kubernetes.facts import LeaseFacts, NodeFacts
from scheduler.kubernetes.leases import agent_lease
from tests.scheduler.objects import Gi, device, gpu, lease, node


def test_a_node() -> None:
    raw = node("n1", "uid-1", cordoned_gpus="GPU-a, GPU-b,", excluded_gpus="GPU-c")
    assert translate.node(raw) == NodeFacts(
        "n1", "uid-1", True, frozenset({"GPU-a", "GPU-b"}), frozenset({"GPU-c"})
    )
    assert not translate.node(node("n1", isolates=False)).isolates
    for policy, partitioned in (("Honor", True), ("Prefer", False)):
        raw["metadata"]["labels"]["node.koordinator.sh/gpu-partition-policy"] = policy
        assert translate.node(raw).partitioned is partitioned


def test_an_inventory() -> None:
    gpus = (
        gpu("GPU-b", 1, "80Gi", numa=1, root="pci0000:80", labels={"gpuslice.io/link": "x"}),
        gpu("GPU-a", 0, numa=-1, root=""),
        {"type": "rdma", "id": "0000:1f:00.0", "minor": 0},
    )
    facts = translate.device(device("n1", *gpus, node_uid="uid-1"))
    assert (facts.name, facts.node_uid, facts.readable, facts.problems) == ("n1", "uid-1", True, ())
    first, second = facts.gpus
    assert (first.uuid, first.minor, first.total_bytes, first.usable) == ("GPU-a", 0, 24 * Gi, True)
    assert (first.numa, first.root, first.link) == (None, None, None)
    assert (second.numa, second.root, second.link) == (1, "pci0000:80", "x")
    assert second.labels == {"gpuslice.io/link": "x"}


@pytest.mark.parametrize("health", [False, None, "true"])
def test_a_gpu_that_is_not_reported_as_healthy_is_not_usable(health: object) -> None:
    (only,) = translate.device(device("n1", gpu("GPU-a", 0, health=health))).gpus
    assert not only.usable


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"id": ""}, 'id: invalid value "": must be the UUID of a GPU'),
        ({"id": 5}, "id: invalid value 5"),
        ({"minor": None}, "minor: required value: must be a whole number from 0"),
        ({"minor": True}, "minor: invalid value true"),
        ({"minor": -1}, "minor: invalid value -1"),
        ({"resources": None}, "resources.koordinator.sh/gpu-memory: required value: must be a"),
        ({"resources": {"koordinator.sh/gpu-memory": "99"}}, 'value "99": must be a quantity from'),
        ({"resources": {"koordinator.sh/gpu-memory": "1Ei"}}, 'invalid value "1Ei": must be a'),
        ({"id": "GPU-b"}, 'id: invalid value "GPU-b": must be unique'),
    ],
)
def test_a_gpu_that_cannot_be_read_is_left_out_and_reported(
    change: dict[str, object], text: str
) -> None:
    facts = translate.device(device("n1", gpu("GPU-b", 1), {**gpu("GPU-a", 0), **change}))
    assert [each.uuid for each in facts.gpus] == ["GPU-b"]
    (problem,) = facts.problems
    assert problem.startswith("Device: spec.devices[1]")
    assert text in problem


def test_the_deprecated_name_of_a_gpus_memory_is_read() -> None:
    old = {**gpu("GPU-a", 0), "resources": {"kubernetes.io/gpu-memory": "24Gi"}}
    assert translate.device(device("n1", old)).gpus[0].total_bytes == 24 * Gi


def test_more_gpus_than_a_node_can_have() -> None:
    facts = translate.device(device("n1", *(gpu(f"GPU-{n}", n) for n in range(18))))
    assert [each.minor for each in facts.gpus] == list(range(16))
    assert facts.problems == ("Device: 18 GPUs; those behind the first 16 are left out",)


def test_an_inventory_that_cannot_be_read_and_an_empty_one() -> None:
    empty, broken = device("n1"), device("n1")
    empty["spec"]["devices"] = None
    broken["spec"]["devices"] = "none"
    assert translate.device(empty).readable
    facts = translate.device(broken)
    assert (facts.readable, facts.gpus) == (False, ())
    assert facts.problems == ('Device: spec.devices: invalid value "none": must be a list',)


def test_an_agents_lease() -> None:
    beat, at_s = "2026-01-01T00:00:07.000000Z", 1767225607.0
    for ready, said in (("true", ""), ("no driver", "no driver"), ("", "no reason given")):
        found = agent_lease(lease("n1", 7, ready))
        assert found == LeaseFacts("n1", beat, said, at_s)
    assert agent_lease(lease("n1", 7, None)) == LeaseFacts(
        "n1", beat, "readiness not reported", at_s
    )


@pytest.mark.parametrize("written", [None, "", "soon", "2026-01-01T00:00:07"])
def test_a_lease_without_a_valid_renewal_time(written: str | None) -> None:
    raw = lease("n1")
    raw["spec"]["renewTime"] = written
    assert agent_lease(raw) == LeaseFacts("n1", written or "")


def test_other_leases_are_not_an_agents() -> None:
    elsewhere, other = lease("n1"), lease("n1")
    elsewhere["metadata"]["namespace"] = "kube-node-lease"
    other["metadata"]["name"] = names.LEASE_KUBE_SCHEDULER
    assert agent_lease(elsewhere) is None
    assert agent_lease(other) is None
