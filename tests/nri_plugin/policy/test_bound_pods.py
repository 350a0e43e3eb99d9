"""The order of binding, and which pods exceed a GPU's capacity, compared with a plain loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.contract import grants, names
from nri_plugin.policy import ledger
from nri_plugin.policy.bound_pods import BoundPods
from nri_plugin.policy.kube_objects import Bound
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Gpu, Pod, Share
from nri_plugin.policy.refusals import Reason
from nri_plugin.policy.totals import Entry
from tests.nri_plugin.policy import plan_scene as scene
from tests.support import GIB

GPUS = (Gpu("GPU-0", 0, 8 * GIB), Gpu("GPU-1", 1, 4 * GIB))
NO_PODS: frozenset[str] = frozenset()
ALLOCATED = names.ANNOTATION_DEVICE_ALLOCATED


def bound(
    uid: str,
    memory_bytes: int = GIB,
    gpu: int = 0,
    core: int | None = 10,
    scheduled: str = "2026-01-01T00:00:00Z",
) -> Bound:
    cap = {} if core is None else {"core": core}
    entry = scene.entry(GPUS[gpu].uuid, gpu, memory=memory_bytes, **cap)
    pod = replace(scene.pod([entry], uid=uid), name=f"pod-{uid}")
    return Bound(pod, scheduled, False, {names.RESOURCE_MEMORY: memory_bytes})


BY_MINOR = scene.pod([scene.entry(None, 1, memory=GIB)]).annotations


def with_annotations(of: Bound, annotations: Mapping[str, str], **changes: Any) -> Bound:
    return replace(of, pod=replace(of.pod, annotations=annotations), **changes)


def granted(of: Bound, writer: str = "", **containers: Sequence[grants.GpuGrant]) -> Bound:
    written = {**of.pod.annotations, names.ANNOTATION_GRANTS: grants.encode(containers)}
    return with_annotations(of, written, writer=writer)


def put(*pods: Bound, listing: bool = False, into: BoundPods | None = None) -> BoundPods:
    bounds = into or BoundPods()
    for each in pods:
        bounds.put(each, listing)
    return bounds


def over(bounds: BoundPods, *holding: str) -> set[str]:
    return set(bounds.over(GPUS, frozenset(holding)))


def hold(pod: Pod, *shares: Share) -> Hold:
    return ledger.hold("c0ffee", "c0ffee", pod, "main", shares)


asks = st.lists(
    st.tuples(st.integers(0, 1), st.integers(1, 8), st.none() | st.integers(0, 100)), max_size=8
)


@given(asks, st.data())
def test_pods_fit_in_the_order_of_binding(
    requested: Sequence[tuple[int, int, int | None]], data: st.DataObject
) -> None:
    """The first `listed` pods come in a list, in any order. The others come as later events."""
    listed = data.draw(st.integers(0, len(requested)))
    pods = [
        bound(f"{number}", gib * GIB, gpu, core, f"2026-01-01T00:00:{number:02}Z")
        for number, (gpu, gib, core) in enumerate(requested)
    ]
    bounds = put(*data.draw(st.permutations(pods[:listed])), listing=True)
    bounds.keep({each.pod.uid for each in pods[:listed]})
    put(*pods[listed:], into=bounds)
    left = {(0, "m"): 8 * GIB, (1, "m"): 4 * GIB, (0, "c"): 100, (1, "c"): 100}
    expected = set()
    for each, (gpu, gib, core) in zip(pods, requested, strict=True):
        if gib * GIB > GPUS[gpu].memory_bytes:
            continue  # a pod that alone exceeds the GPU is refused, and takes no capacity
        if gib * GIB <= left[gpu, "m"] and (core or 0) <= left[gpu, "c"]:
            left[gpu, "m"] -= gib * GIB
            left[gpu, "c"] -= core or 0
        else:
            expected.add(each.pod.uid)
    assert over(bounds) == expected
    for uid in expected:
        bounds.deleted(uid)
    assert over(bounds) == set()


def test_the_order_of_binding_follows_the_watch_and_not_the_clock() -> None:
    bounds = put(bound("b", 5 * GIB, scheduled="2026-01-01T00:00:09Z"), bound("a", 5 * GIB))
    assert over(bounds) == {"a"}
    # Pods of a later list come last, whatever time of binding they have.
    put(bound("c", 3 * GIB, scheduled="2025-01-01T00:00:00Z"), listing=True, into=bounds)
    assert over(bounds) == {"a"}
    put(bound("d", 3 * GIB, scheduled="2024-01-01T00:00:00Z"), listing=True, into=bounds)
    assert over(bounds) == {"a", "c"}
    bounds.keep({"a", "b", "c", "d"})
    put(bound("e", 3 * GIB, scheduled="2023-01-01T00:00:00Z"), listing=True, into=bounds)
    assert over(bounds) == {"a", "c", "e"}


def test_of_pods_bound_in_one_second_the_running_one_stays() -> None:
    bounds = put(bound("a", 5 * GIB), bound("b", 5 * GIB), listing=True)
    assert over(bounds) == {"b"}
    assert over(bounds, "b") == {"a"}
    put(bound("b", 6 * GIB), into=bounds)
    assert over(bounds, "b") == set(), "a changed allocation takes no capacity"


def test_the_totals_of_requests_and_the_gpus_of_all_bound_pods() -> None:
    by_minor, odd = with_annotations(bound("c"), BY_MINOR), {ALLOCATED: "["}
    without = with_annotations(bound("e"), {})
    pods = (bound("a"), bound("b", gpu=1), by_minor, with_annotations(bound("d"), odd), without)
    bounds = put(*pods, listing=True)
    assert bounds.requested() == {names.RESOURCE_MEMORY: 5 * GIB}
    assert bounds.granted([Entry(Gpu("GPU-9", 1, GIB), True)]) == {"GPU-0", "GPU-1", "GPU-9"}
    assert over(bounds) == set() and not bounds.listed
    bounds.keep({"b"})
    assert bounds.granted([]) == {"GPU-1"} and bounds.listed
    assert bounds.requested() == {names.RESOURCE_MEMORY: GIB}


def test_a_terminating_pod_keeps_its_place_until_it_has_finished() -> None:
    first, second = bound("a", 5 * GIB), bound("b", 5 * GIB)
    bounds = put(first, second, first)  # an event of `first`, whose deletion has begun
    refusal = bounds.over(GPUS, NO_PODS)["b"]
    assert refusal.text == (
        f"GPU-0: insufficient free capacity when the pod was bound: {5 * GIB} bytes of memory"
        f" granted, {3 * GIB} of {8 * GIB} free; granted to pods bound before it: team/pod-a"
        f" {5 * GIB}; delete the pod to reschedule it"
    )
    assert refusal.reason is Reason.GRANT_OVERFILLS
    assert bounds.objection(second.pod, GPUS, NO_PODS) == refusal
    put(replace(first, finished=True), into=bounds)
    assert over(bounds) == set() and bounds.pod("a") is None


CHANGED = f"annotation {ALLOCATED} was changed after the pod was bound"
UNWRITTEN = f"annotation {names.ANNOTATION_WRITER}, which our scheduler"
OURS = granted(bound("a"), "s 1")


@pytest.mark.parametrize(
    ("order", "problem"),
    [
        ([bound("a", scheduled="")], "with spec.nodeName; no scheduler bound it"),
        ([granted(bound("a"))], UNWRITTEN),
        ([replace(bound("a"), is_ours=True)], UNWRITTEN),
        ([bound("a"), bound("a", 2 * GIB)], CHANGED),
        ([bound("a"), bound("a", 2 * GIB), bound("a"), bound("a")], CHANGED),
        ([with_annotations(bound("a"), {}), bound("a")], CHANGED),
        ([bound("a"), OURS], f"{names.ANNOTATION_GRANTS} was changed after"),
        ([OURS, granted(bound("a"), "s 2")], f"{names.ANNOTATION_WRITER} was changed after"),
    ],
)
def test_a_grant_that_no_scheduler_wrote_stays_foreign_until_deletion(
    order: Sequence[Bound], problem: str
) -> None:
    bounds = put(*order)
    found = bounds.foreign()["a"]
    assert found.reason is Reason.GRANT_FOREIGN
    assert problem in found.text
    assert bounds.objection(order[-1].pod, GPUS, NO_PODS) == found
    assert bounds.mismatch(hold(order[-1].pod), GPUS) == found
    put(bound("b0", 4 * GIB), bound("b1", 4 * GIB), into=bounds)
    assert (over(bounds), {*bounds.allocated()}) == (set(), {"b0", "b1"}), "it does not count"
    bounds.deleted("a")
    assert bounds.foreign() == {}


RDMA = {ALLOCATED: '{"rdma":[{"minor":0,"resources":null}]}'}
RDMA_TOO = {ALLOCATED: '{"rdma":[{"minor":1,"resources":null}]}'}


def test_a_grant_that_a_scheduler_may_have_written_is_not_foreign() -> None:
    one = bound("a")
    for order in (
        [one, replace(one, pod=replace(one.pod, labels={}))],
        [OURS, OURS],
        [replace(granted(one, " 0"), is_ours=True)],
        [replace(with_annotations(bound("a", scheduled=""), {}), is_ours=True)],
        [with_annotations(bound("a", scheduled=""), RDMA)],
        [with_annotations(one, RDMA), with_annotations(one, RDMA_TOO)],
        [with_annotations(one, RDMA), replace(one, pod=Pod("a", "", ""), writer="x")],
    ):
        assert put(*order).foreign() == {}


def test_a_pod_that_differs_from_the_api_servers_is_refused() -> None:
    known, bounds = bound("a").pod, put(bound("a"))
    for labels in ({**known.labels, "app": "x"}, {}):
        assert bounds.objection(replace(known, labels=labels), GPUS, NO_PODS) is None
    for other in (replace(known, annotations={}), bound("a", 2 * GIB).pod, granted(bound("a")).pod):
        assert BoundPods().objection(other, GPUS, NO_PODS) is None, "it is not known yet"
        objection = bounds.objection(other, GPUS, NO_PODS)
        assert objection is not None and objection.reason is Reason.GRANT_UNCONFIRMED
        assert " differs there" in objection.text


HALF = Share("GPU-0", 0, GIB, 10)
KNOWN, TWICE, PLAIN = bound("a"), bound("a", 2 * GIB), Pod("a", "team", "pod-a")
MINOR = with_annotations(bound("a"), BY_MINOR)
ODD = with_annotations(replace(KNOWN, writer="s 1"), {ALLOCATED: "["})
GRANT, NONE = grants.GpuGrant("GPU-0", 0, GIB, 10), "granted are 0 and 0"
UNNAMED = (
    "container main has a share of GPU-0, which the grant does not name; delete the pod to"
    " reschedule it"
)

HOLDS: Mapping[str, tuple[Bound | None, Pod, Share, int, str | None]] = {
    "of a pod that is not known": (None, KNOWN.pod, HALF, 2, None),
    "all of the grant": (KNOWN, KNOWN.pod, HALF, 2, None),
    "no cap": (KNOWN, KNOWN.pod, Share("GPU-0", 0, GIB // 2, 100, uncapped=True), 2, None),
    "of a failed GPU": (KNOWN, KNOWN.pod, HALF, 0, None),
    "of a GPU by its minor": (MINOR, MINOR.pod, HALF, 1, None),
    "without the label of then": (TWICE, replace(TWICE.pod, labels={}), HALF, 2, None),
    "without the annotations of then": (TWICE, PLAIN, HALF, 2, None),
    "of a failed GPU that is not granted": (bound("a", gpu=1), PLAIN, HALF, 1, UNNAMED),
    "memory": (KNOWN, KNOWN.pod, Share("GPU-0", 0, GIB + 1, 10), 2, f"has {GIB + 1} bytes"),
    "compute": (KNOWN, KNOWN.pod, Share("GPU-0", 0, GIB, 11), 2, f"has {GIB} bytes"),
    "another GPU": (KNOWN, KNOWN.pod, Share("GPU-1", 1, 1, 0), 2, "has 1 bytes"),
    "no grant": (replace(KNOWN, pod=PLAIN), PLAIN, HALF, 2, NONE),
    "an unreadable allocation": (ODD, PLAIN, HALF, 2, NONE),
    "another container's grant": (granted(KNOWN, "s 1", other=[GRANT]), PLAIN, HALF, 2, NONE),
    "an empty grant": (granted(KNOWN, "s 1", other=[]), PLAIN, HALF, 2, "a list of 1 to 16 GPUs"),
}


@pytest.mark.parametrize(("known", "pod", "share", "gpus", "text"), HOLDS.values(), ids=HOLDS)
def test_a_hold_is_compared_with_its_grant(
    known: Bound | None, pod: Pod, share: Share, gpus: int, text: str | None
) -> None:
    """gpus: how many GPUs NVML lists."""
    bounds = put(*[known] if known else [])
    found = bounds.mismatch(hold(pod, share), GPUS[:gpus])
    if text is None:
        assert found is None
    else:
        assert found is not None and text in found.text
        assert found.reason is Reason.GRANT_UNCONFIRMED


def test_an_allocation_that_was_changed_since_the_containers_creation_is_detected() -> None:
    found = put(TWICE).mismatch(hold(KNOWN.pod, HALF), GPUS)
    assert found is not None and found.reason is Reason.GRANT_FOREIGN
