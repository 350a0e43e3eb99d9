"""What an uninstallation removes from nodes and Devices, by the programs that wrote it."""

from __future__ import annotations

import pytest

from gpuslice.contract import names
from scheduler.kubernetes import removal
from tests.scheduler import objects
from tests.scheduler.objects import written

AGENT, CORE = names.AGENT, names.RESOURCE_CORE
VERSION = {"resourceVersion": "7"}
REMOVED, REPORTED, IGNORED = "removed", "reported", "ignored"


@pytest.mark.parametrize(
    ("path", "value", "writers", "becomes"),
    [
        (f"status capacity {CORE}", "100", AGENT, REMOVED),
        (f"status allocatable {CORE}", "100", f"koord-manager {AGENT}", REMOVED),
        (f"status capacity {CORE}", "100", "koord-manager", REPORTED),
        (f"status capacity {CORE}", "100", "kubelet", REPORTED),
        (f"status capacity {CORE}", "0", "kubelet", REMOVED),
        (f"status capacity {CORE}", "0", "", REMOVED),
        (f"status capacity {CORE}", "0", "kubelet koord-manager", REPORTED),
        ("status capacity example.com/gpu", "1", AGENT, REMOVED),
        ("status capacity example.com/gpu", "0", "kubelet", IGNORED),
        ("metadata labels gpuslice.io/a", "x", AGENT, REMOVED),
        ("metadata labels gpuslice.io/a", "x", "", REPORTED),
        ("metadata annotations example.com/a", "x", f"kubectl {AGENT}", REMOVED),
        ("metadata annotations gpuslice.io/a", "x", "kubectl", REPORTED),
        ("metadata annotations example.com/a", "x", "kubectl", IGNORED),
    ],
)
def test_what_an_agent_wrote_on_a_node_is_removed_and_what_looks_like_it_is_reported(
    path: str, value: str, writers: str, becomes: str
) -> None:
    """A kubelet may have replaced an agent's total by zero."""
    part, kind, key = path.split()
    node, removed = written("n1", (path, value, writers)), {kind: {key: None}}
    status = {"metadata": VERSION, "status": removed} if part == "status" else None
    metadata = {"metadata": {**VERSION, **removed}} if part == "metadata" else None
    found = removal.status_patch(node), removal.metadata_patch(node)
    assert found == ((status, metadata) if becomes == REMOVED else (None, None))
    assert removal.kept(node) == [key] * (becomes == REPORTED)


def test_a_total_that_an_agent_wrote_is_removed_in_both_places() -> None:
    capacity, allocatable = (f"status {kind} {CORE}" for kind in ("capacity", "allocatable"))
    node = written("n1", (capacity, "100", AGENT), (allocatable, "90", "koord-manager"))
    status = {"capacity": {CORE: None}, "allocatable": {CORE: None}}
    assert removal.status_patch(node) == {"metadata": VERSION, "status": status}


def test_the_gpus_of_a_device_are_removed_if_only_the_agent_wrote_it() -> None:
    gpu, rdma = {"type": "gpu", "id": "GPU-1"}, {"type": "rdma", "id": "0000:1f:00.2"}
    ours = written("n1", ("spec devices", [gpu], AGENT))
    assert removal.is_agents(ours) and removal.device_patch(ours) is None
    both = written("n1", ("spec devices", [gpu, rdma], f"koordlet {AGENT}"))
    patch = {"metadata": VERSION, "spec": {"devices": [rdma]}}
    assert not removal.is_agents(both) and removal.device_patch(both) == patch


@pytest.mark.parametrize(
    ("key", "value", "node", "phase", "has_share"),
    [
        (names.ANNOTATION_DEVICE_ALLOCATED, '{"gpu": []}', "n1", "Running", True),
        (names.ANNOTATION_DEVICE_ALLOCATED, '{"rdma": []}', "n1", "Running", False),
        (names.ANNOTATION_DEVICE_ALLOCATED, '["gpu"]', "n1", "Running", False),
        (names.ANNOTATION_DEVICE_ALLOCATED, "{", "n1", "Running", False),
        (names.ANNOTATION_GRANTS, "{}", "n1", "Pending", True),
        (names.ANNOTATION_GRANTS, "{}", "n1", "Succeeded", False),
        (names.ANNOTATION_GRANTS, "{}", "n1", "Failed", False),
        (names.ANNOTATION_GRANTS, "{}", "", "Pending", False),
    ],
)
def test_a_pod_has_a_share_while_it_is_bound_and_has_not_ended(
    key: str, value: str, node: str, phase: str, has_share: bool
) -> None:
    pod = objects.pod(node=node, phase=phase, annotations={key: value})
    assert removal.has_share(pod) is has_share
