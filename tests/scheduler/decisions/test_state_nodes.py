"""GPUs that take no share, and nodes without an inventory or an agent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.core.reasons import Reason
from scheduler.kubernetes import translate
from scheduler.kubernetes.leases import agent_lease
from tests.scheduler.decisions.state_scene import (
    HALF,
    holding,
    made,
    observe_device,
    observe_lease,
    observe_node,
    reason,
    texts,
    used,
)
from tests.scheduler.objects import device, gpu, lease, node


@pytest.mark.parametrize("what", ["cordoned", "excluded"])
def test_a_gpu_that_is_cordoned_or_excluded_takes_no_share_and_keeps_what_it_has(
    what: str,
) -> None:
    state = made(gpu("GPU-a", 0))
    state.observe_pod(holding("u"))
    changed: dict[str, Any] = {what: frozenset({"GPU-a"})}
    state.observe_node(replace(translate.node(node("n1")), **changed))
    assert used(state) == {"GPU-a": (12, 50, 0)}
    assert reason(state) is Reason.NO_USABLE_GPU
    observe_node(state, node("n1"))
    assert reason(state, HALF) is Reason.FITS
    assert used(state) == {"GPU-a": (12, 50, 0)}


@pytest.mark.parametrize("what", ["cordoned", "excluded"])
def test_a_uuid_that_withholds_no_gpu_is_reported(what: str) -> None:
    """A misspelt one, or an index, leaves the GPU open to new shares."""
    state = made(gpu("GPU-a", 0))
    key = f"gpuslice.io/{what}-gpus"
    raw = node("n1")
    raw["metadata"].setdefault("annotations", {})[key] = "GPU-a, GPU-A, 0, 1, 2, 3"
    observe_node(state, raw)
    assert [(each.node, each.about, each.text) for each in state.problems()] == [
        (
            "n1",
            "",
            f"metadata.annotations[{key}]: invalid value 0, 1, 2 and 2 more: must be UUIDs of GPUs"
            " in the node's Device; it has no effect",
        )
    ]
    raw["metadata"]["annotations"][key] = "GPU-a"
    observe_node(state, raw)
    assert not state.problems()


def test_an_unhealthy_gpu_takes_no_share_and_recovers() -> None:
    state = made(gpu("GPU-a", 0, health=False))
    assert reason(state) is Reason.NO_USABLE_GPU
    observe_device(state, device("n1", gpu("GPU-a", 0)))
    assert reason(state) is Reason.FITS


def test_a_node_without_an_inventory() -> None:
    state = made()
    state.remove_device("n1")
    state.remove_device("n1")
    assert reason(state) is Reason.NO_DEVICE


def test_an_inventory_that_cannot_be_read() -> None:
    state, broken = made(), device("n1")
    broken["spec"]["devices"] = 5
    observe_device(state, broken)
    assert reason(state) is Reason.DEVICE_UNREADABLE
    assert texts(state) == ["n1  Device: spec.devices: invalid value 5: must be a list"]


def test_a_node_whose_agent_has_not_reported_is_missing_or_not_ready() -> None:
    state = made()
    observe_lease(state, lease("n1", 1, "no driver"), 1.0)
    assert reason(state) is Reason.AGENT_NOT_READY
    assert texts(state) == ["n1  node agent: no driver"]
    observe_lease(state, lease("n1", 2), 2.0)
    assert reason(state) is Reason.FITS
    state.remove_lease("n1")
    state.remove_lease("n1")
    assert reason(state) is Reason.AGENT_MISSING


def test_a_lease_expires_when_it_has_not_changed_by_our_clock() -> None:
    state = made()
    observe_lease(state, lease("n1", 1), 10.0)
    assert state.tick(50.0) == []
    observe_lease(state, lease("n1", 1), 50.1)
    assert state.tick(50.1) == ["n1"]
    assert state.tick(50.2) == []
    assert reason(state) is Reason.AGENT_LEASE_EXPIRED
    observe_lease(state, lease("n1", 1), 51.0)
    assert reason(state) is Reason.AGENT_LEASE_EXPIRED, "observed again, unchanged"
    observe_lease(state, lease("n1", 2), 52.0)
    assert reason(state) is Reason.FITS


def test_the_age_of_a_lease_before_we_began_counts() -> None:
    state, read = made(), agent_lease(lease("n1", 1))
    assert read is not None
    state.remove_lease("n1")
    state.observe_lease(read, 100.0, age_s=30.0)
    assert (state.tick(110.0), state.tick(110.1)) == ([], ["n1"])
    state.remove_lease("n1")
    state.observe_lease(read, 110.0, age_s=40.1)
    assert reason(state) is Reason.AGENT_LEASE_EXPIRED
    state.observe_lease(read, 111.0, age_s=0.0)
    assert reason(state) is Reason.AGENT_LEASE_EXPIRED, "observed again, unchanged"
    observe_lease(state, lease("n1", 2), 112.0)
    assert reason(state) is Reason.FITS
