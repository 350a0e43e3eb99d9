"""The pods that hold GPUs: bound, finished, replaced, unreadable."""

from __future__ import annotations

from typing import Any

import pytest

from gpuslice.contract import names
from scheduler.core.reasons import Reason
from scheduler.decisions.state import Assumed
from scheduler.kubernetes import binding, translate
from tests.scheduler.decisions.state_scene import (
    HALF_OF_A,
    NONE,
    chosen,
    holding,
    made,
    observe_device,
    observe_node,
    reason,
    texts,
    used,
)
from tests.scheduler.objects import Gi, container, device, gpu, node, pod


def test_pods_bound_by_us_by_koordinator_and_by_hand_all_count() -> None:
    state = made()
    ours = pod(
        container("main", core=50, ratio=50),
        uid="ours",
        node="n1",
        annotations={**binding.annotations_of(chosen(state))},
    )
    state.observe_pod(translate.pod(ours))
    state.observe_pod(holding("koordinators", memory="6Gi", core=25, ratio=25))
    state.observe_pod(holding("by-hand", None, 1, memory="1Gi"))
    assert used(state) == {"GPU-a": (18, 75, 0), "GPU-b": (1, 0, 1)}
    assert texts(state) == []


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_releases(phase: str) -> None:
    state = made()
    state.observe_pod(holding("u"))
    assert used(state) == HALF_OF_A
    state.observe_pod(holding("u", phase=phase))
    assert used(state) == NONE
    state.observe_pod(holding("u", phase=phase))
    state.remove_pod("u")
    assert used(state) == NONE
    assert (state.node_of("u"), state.is_bound("u")) == (None, False)


@pytest.mark.parametrize(
    ("containers", "most"),
    [
        (
            [container("main", core=50, ratio=50), container("o", memory="1Gi", core=10)],
            (13, 60, 0),
        ),
        ([container(f"c{n}", memory="24Gi", core=100) for n in range(2)], (24, 100, 0)),
        ([container("c", ratio=10)], (2, 0, 1)),
        ([container("main", core=50)], (24, 100, 0)),
    ],
    ids=["what it asks for", "at most the GPU", "without core", "refused"],
)
def test_an_unreadable_annotation_occupies_every_gpu_and_is_reported(
    containers: list[dict[str, Any]], most: tuple[int, int, int]
) -> None:
    state = made()
    annotations = {names.ANNOTATION_DEVICE_ALLOCATED: "{"}
    state.observe_pod(translate.pod(pod(*containers, uid="u", node="n1", annotations=annotations)))
    assert used(state) == {"GPU-a": most, "GPU-b": most}
    (text,) = texts(state)
    assert text.startswith(f"n1 default/pod-u annotation {names.ANNOTATION_DEVICE_ALLOCATED}: not")
    state.remove_pod("u")
    assert used(state) == NONE


def test_a_vanished_gpu_keeps_its_allocation_and_is_reported() -> None:
    state = made()
    state.observe_pod(holding("u"))
    observe_device(state, device("n1", gpu("GPU-b", 1)))
    assert used(state) == {"GPU-b": (0, 0, 0)}
    assert texts(state) == ["n1 default/pod-u holds a GPU that its node does not have: GPU-a"]
    observe_device(state, device("n1", gpu("GPU-a", 0), gpu("GPU-b", 1)))
    assert used(state) == HALF_OF_A
    assert texts(state) == []


def test_a_vanished_gpu_without_uuid_is_reported_by_its_minor() -> None:
    state = made()
    state.observe_pod(holding("u", None, 7))
    assert texts(state) == ["n1 default/pod-u holds a GPU that its node does not have: minor 7"]
    state.observe_pod(holding("u", None, 1, ratio=50))
    assert used(state) == {"GPU-a": (0, 0, 0), "GPU-b": (12, 0, 1)}
    assert texts(state) == []


def test_a_node_replaced_under_its_name() -> None:
    """The old node's inventory does not apply to the new one; its pods hold the GPUs that they
    name."""
    state = made()
    state.observe_pod(holding("u"))
    observe_node(state, node("n1", "another"))
    assert reason(state) is Reason.DEVICE_STALE
    observe_device(state, device("n1", gpu("GPU-c", 0), node_uid="another"))
    assert reason(state) is Reason.FITS
    assert used(state) == {"GPU-c": (0, 0, 0)}
    assert texts(state) == ["n1 default/pod-u holds a GPU that its node does not have: GPU-a"]


def test_a_list_ends_pods_that_it_lacks_but_not_assumed_ones() -> None:
    state = made()
    state.observe_pod(holding("kept"))
    state.observe_pod(holding("gone", "GPU-b", 1))
    state.assume("assumed", Assumed(chosen(state), {}, 10.0))
    state.keep_pods(["kept"])
    assert used(state) == {"GPU-a": (24, 100, 0), "GPU-b": (0, 0, 0)}


def test_a_node_that_is_deleted_and_recreated_has_its_pods() -> None:
    state = made()
    state.observe_pod(holding("u"))
    state.remove_node("n1")
    assert reason(state) is Reason.NODE_UNKNOWN
    assert state.node_of("u") == "n1"
    state.remove_pod("gone")
    observe_node(state, node("n2"))
    observe_node(state, node("n1"))
    assert used(state) == HALF_OF_A
    state.remove_node("n1")
    state.remove_pod("u")
    observe_node(state, node("n1"))
    assert used(state) == NONE
    state.remove_node("never")


def test_foreign_grants_over_the_gpu_leave_none_free_and_are_reported() -> None:
    state = made(gpu("GPU-a", 0))
    state.observe_pod(holding("u-1", memory="20Gi", core=80))
    state.observe_pod(holding("u-2", memory="20Gi", core=80))
    fleet, row = state.fleet, state.fleet.row_of("n1")
    assert (fleet.free_bytes[row, 0], fleet.free_core[row, 0]) == (0, 0)
    assert reason(state) is Reason.MEMORY_AND_CORE
    assert texts(state) == [
        f"n1  GPU-a: overcommitted: {40 * Gi} of {24 * Gi} bytes, 160 of 100 percent of core"
    ]
    state.remove_pod("u-1")
    assert texts(state) == []
    assert int(fleet.free_bytes[row, 0]) == 4 * Gi
