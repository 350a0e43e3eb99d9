"""The order of binding, and which pods exceed a GPU's capacity: against a plain loop, in any
order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.contract import allocation, grants, names
from nri_plugin.policy import ledger
from nri_plugin.policy.bound_pods import BoundPods
from nri_plugin.policy.kube_objects import Bound
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Gpu, Pod, Share
from nri_plugin.policy.refusals import Reason
from nri_plugin.policy.totals import Entry
from tests.support import GIB

GPUS = (Gpu("GPU-0", 0, 8 * GIB), Gpu("GPU-1", 1, 4 * GIB))
NO_PODS: frozenset[str] = frozenset()
NOW = "2026-01-01T00:00:00Z"
LABEL = names.LABEL_ISOLATION_PROVIDER


def allocated(gpu: int, memory_bytes: int, core: int | None = 10, uuid: str | None = "") -> str:
    resources = {names.RESOURCE_MEMORY: memory_bytes}
    if core is not None:
        resources[names.RESOURCE_CORE] = core
    entry = allocation.DeviceEntry(gpu, resources, GPUS[gpu].uuid if uuid == "" else uuid)
    return allocation.encode(allocation.Allocation({names.DEVICE_TYPE_GPU: (entry,)}))


def bound(
    uid: str, memory_bytes: int = GIB, gpu: int = 0, core: int | None = 10, scheduled: str = NOW
) -> Bound:
    annotations = {names.ANNOTATION_DEVICE_ALLOCATED: allocated(gpu, memory_bytes, core)}
    pod = Pod(uid, "team", f"pod-{uid}", {LABEL: "hami-core"}, annotations)
    requested = {names.RESOURCE_MEMORY: memory_bytes}
    return Bound(pod, scheduled, finished=False, requested=requested)


def over(bounds: BoundPods, holding: frozenset[str] = NO_PODS) -> set[str]:
    return set(bounds.over(GPUS, holding))


asks = st.lists(
    st.tuples(st.integers(0, 1), st.integers(1, 8), st.none() | st.integers(0, 100)), max_size=8
)


@given(asks, st.data())
def test_pods_fit_in_the_order_of_binding(
    requested: Sequence[tuple[int, int, int | None]], data: st.DataObject
) -> None:
    """The first `listed` come by a list, which has the time of binding; the others by a watch."""
    listed = data.draw(st.integers(0, len(requested)))
    pods = [
        bound(f"{number}", gib * GIB, gpu, core, f"2026-01-01T00:00:{number:02}Z")
        for number, (gpu, gib, core) in enumerate(requested)
    ]
    bounds = BoundPods()
    for each in data.draw(st.permutations(pods[:listed])):
        bounds.put(each, listing=True)
    bounds.keep({each.pod.uid for each in pods[:listed]})
    for each in pods[listed:]:
        bounds.put(each, listing=False)
    left = {(0, "m"): 8 * GIB, (1, "m"): 4 * GIB, (0, "c"): 100, (1, "c"): 100}
    expected = set()
    for each, (gpu, gib, core) in zip(pods, requested, strict=True):
        if gib * GIB > GPUS[gpu].memory_bytes:
            continue  # refused for itself, and not counted in the order
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
    bounds = ordered(bound("b", 5 * GIB, scheduled="2026-01-01T00:00:09Z"), bound("a", 5 * GIB))
    assert over(bounds) == {"a"}
    # Pods of a later list come last, whatever time of binding they have.
    bounds.put(bound("c", 3 * GIB, scheduled="2025-01-01T00:00:00Z"), listing=True)
    assert over(bounds) == {"a"}
    bounds.put(bound("d", 3 * GIB, scheduled="2024-01-01T00:00:00Z"), listing=True)
    assert over(bounds) == {"a", "c"}


def test_the_totals_of_requests_and_the_gpus_of_all_bound_pods() -> None:
    bounds = BoundPods()
    bounds.put(bound("a", GIB), listing=True)
    bounds.put(bound("b", GIB, gpu=1), listing=True)
    by_minor = {names.ANNOTATION_DEVICE_ALLOCATED: allocated(1, GIB, uuid=None)}
    bounds.put(replace(bound("c"), pod=Pod("c", "t", "c", {}, by_minor)), listing=True)
    odd = {names.ANNOTATION_DEVICE_ALLOCATED: "["}
    bounds.put(replace(bound("d"), pod=Pod("d", "t", "d", {}, odd)), listing=True)
    bounds.put(replace(bound("e"), pod=Pod("e", "t", "e")), listing=True)
    assert bounds.requested() == {names.RESOURCE_MEMORY: 5 * GIB}
    assert bounds.granted([Entry(Gpu("GPU-9", 1, GIB), True)]) == {"GPU-0", "GPU-1", "GPU-9"}
    assert over(bounds) == set()
    bounds.keep({"b"})
    assert bounds.granted([]) == {"GPU-1"}
    assert bounds.requested() == {names.RESOURCE_MEMORY: GIB}


# --- the writer of a grant


def ordered(*order: Bound) -> BoundPods:
    bounds = BoundPods()
    for each in order:
        bounds.put(each, listing=False)
    return bounds


def granted(of: Bound, writer: str = "", **containers: Sequence[grants.GpuGrant]) -> Bound:
    """Return a pod with grants of ours."""
    written = {**of.pod.annotations, names.ANNOTATION_GRANTS: grants.encode(containers)}
    return replace(of, pod=replace(of.pod, annotations=written), writer=writer)


def with_annotations(of: Bound, annotations: dict[str, str]) -> Bound:
    return replace(of, pod=replace(of.pod, annotations=annotations))


@pytest.mark.parametrize(
    ("order", "problem"),
    [
        ([bound("a", scheduled="")], "with spec.nodeName; no scheduler bound it"),
        ([granted(bound("a"))], f"annotation {names.ANNOTATION_WRITER}, which our scheduler"),
        ([replace(bound("a"), is_ours=True)], f"annotation {names.ANNOTATION_WRITER}, which our"),
        (
            [bound("a"), bound("a", 2 * GIB)],
            f"annotation {names.ANNOTATION_DEVICE_ALLOCATED} was changed after the pod was bound",
        ),
        ([bound("a"), bound("a", 2 * GIB), bound("a")], "was changed after"),
        ([with_annotations(bound("a"), {}), bound("a")], "was changed after"),
        ([bound("a"), granted(bound("a"), "s 1")], f"{names.ANNOTATION_GRANTS} was changed after"),
        (
            [granted(bound("a"), "s 1"), granted(bound("a"), "s 2")],
            f"{names.ANNOTATION_WRITER} was changed after",
        ),
    ],
)
def test_a_grant_that_no_scheduler_wrote_stays_foreign_until_deletion(
    order: Sequence[Bound], problem: str
) -> None:
    bounds = ordered(*order)
    found = bounds.foreign()["a"]
    assert found.reason is Reason.GRANT_FOREIGN
    assert problem in found.text
    assert bounds.objection(order[-1].pod, GPUS, NO_PODS) == found
    assert bounds.mismatch(hold(Pod("a", "team", "pod-a")), GPUS) == found
    # It does not count in the order.
    for number in range(2):
        bounds.put(bound(f"b{number}", 4 * GIB), listing=False)
    assert over(bounds) == set()
    bounds.deleted("a")
    assert bounds.foreign() == {}


RDMA = {names.ANNOTATION_DEVICE_ALLOCATED: '{"rdma":[{"minor":0,"resources":null}]}'}
RDMA_TOO = {names.ANNOTATION_DEVICE_ALLOCATED: '{"rdma":[{"minor":1,"resources":null}]}'}


@pytest.mark.parametrize(
    "order",
    [
        [bound("a")],
        [bound("a"), replace(bound("a"), pod=replace(bound("a").pod, labels={}))],
        [granted(bound("a"), "s 1"), granted(bound("a"), "s 1")],
        [replace(granted(bound("a"), " 0"), is_ours=True)],
        [replace(with_annotations(bound("a", scheduled=""), {}), is_ours=True)],
        [with_annotations(bound("a", scheduled=""), RDMA)],
        [with_annotations(bound("a"), RDMA), with_annotations(bound("a"), RDMA_TOO)],
        [with_annotations(bound("a"), RDMA), replace(bound("a"), pod=Pod("a", "", ""), writer="x")],
    ],
)
def test_a_grant_that_a_scheduler_may_have_written_is_not_foreign(order: Sequence[Bound]) -> None:
    assert ordered(*order).foreign() == {}


# --- what a container holds


def hold(pod: Pod, *shares: Share, container: str = "main") -> Hold:
    return ledger.hold("c0ffee", "c0ffee", False, pod, container, shares)


HALF = Share("GPU-0", 0, GIB, 10)


def test_a_hold_within_its_grant_is_no_mismatch() -> None:
    bounds, known = BoundPods(), bound("a")
    assert bounds.mismatch(hold(known.pod, HALF), GPUS) is None  # not known
    bounds.put(known, listing=False)
    for shares in ([], [HALF], [Share("GPU-0", 0, GIB // 2, 100, uncapped=True)]):
        assert bounds.mismatch(hold(known.pod, *shares), GPUS) is None
    # A failed GPU is no evidence against its holders; a pod granted another GPU does not hold it.
    assert bounds.mismatch(hold(known.pod, HALF), GPUS[1:]) is None
    bounds.put(bound("b", gpu=1), listing=False)
    mismatch = bounds.mismatch(hold(Pod("b", "team", "pod-b"), HALF), GPUS[:1])
    assert mismatch is not None and mismatch.text.endswith(
        "container main has a share of GPU-0, which the grant does not name; delete the pod to"
        " reschedule it"
    )
    by_minor = {names.ANNOTATION_DEVICE_ALLOCATED: allocated(1, GIB, uuid=None)}
    bounds.put(with_annotations(bound("c"), by_minor), listing=False)
    assert bounds.mismatch(hold(with_annotations(bound("c"), by_minor).pod, HALF), GPUS[:1]) is None


@pytest.mark.parametrize(
    "held",
    [Share("GPU-0", 0, GIB + 1, 10), Share("GPU-0", 0, GIB, 11), Share("GPU-1", 1, 1, 0)],
)
def test_a_hold_of_more_than_its_grant_is_a_mismatch(held: Share) -> None:
    bounds, known = BoundPods(), bound("a")
    bounds.put(known, listing=False)
    mismatch = bounds.mismatch(hold(known.pod, held), GPUS)
    assert mismatch is not None and mismatch.reason is Reason.GRANT_UNCONFIRMED
    assert f"has {held.memory_bytes} bytes" in mismatch.text


def test_of_pods_bound_in_one_second_the_running_one_stays() -> None:
    bounds = BoundPods()
    for uid in "ab":
        bounds.put(bound(uid, 5 * GIB), listing=True)
    assert over(bounds) == {"b"}
    assert over(bounds, frozenset({"b"})) == {"a"}


def test_a_terminating_pod_keeps_its_place_until_it_has_finished() -> None:
    first, second = bound("a", 5 * GIB), bound("b", 5 * GIB)
    bounds = ordered(first, second, first)  # its deletion has begun
    refusal = bounds.over(GPUS, NO_PODS)["b"]
    assert refusal.text == (
        f"GPU-0: insufficient free capacity when the pod was bound: {5 * GIB} bytes of memory"
        f" granted, {3 * GIB} of {8 * GIB} free; granted to pods bound before it: team/pod-a"
        f" {5 * GIB}; delete the pod to reschedule it"
    )
    assert refusal.reason is Reason.GRANT_OVERFILLS
    assert bounds.objection(second.pod, GPUS, NO_PODS) == refusal
    bounds.put(replace(first, finished=True), listing=False)
    assert over(bounds) == set() and bounds.pod("a") is None


def test_a_pod_that_differs_from_the_api_servers_is_refused() -> None:
    known = bound("a").pod
    written = {**known.annotations, names.ANNOTATION_GRANTS: "{}"}
    for described, differs in (
        (replace(known, labels={**known.labels, "app": "x"}), False),
        (replace(known, labels={}), False),
        (replace(known, annotations={}), True),
        (bound("a", 2 * GIB).pod, True),
        (replace(known, annotations=written), True),
    ):
        assert BoundPods().objection(described, GPUS, NO_PODS) is None, "it is not known yet"
        objection = ordered(bound("a")).objection(described, GPUS, NO_PODS)
        assert (objection is not None) is differs
        if objection is not None:
            assert (
                objection.reason is Reason.GRANT_UNCONFIRMED and " differs there" in objection.text
            )


def test_an_allocation_that_was_changed_without_an_agent_is_detected() -> None:
    """The runtime has the annotations of the container's creation; the label belongs to its
    owner."""
    bounds = ordered(bound("a", 2 * GIB))
    mismatch = bounds.mismatch(hold(bound("a", GIB).pod, HALF), GPUS)
    assert mismatch is not None and mismatch.reason is Reason.GRANT_FOREIGN
    for then in (replace(bound("a", 2 * GIB).pod, labels={}), Pod("a", "team", "pod-a")):
        assert bounds.mismatch(hold(then, HALF), GPUS) is None


def test_a_hold_of_a_pod_without_a_grant_is_a_mismatch() -> None:
    plain = Pod("a", "team", "pod-a")
    odd = replace(plain, annotations={names.ANNOTATION_DEVICE_ALLOCATED: "["})
    other = granted(bound("a"), other=[]).pod
    for pod in (plain, odd, other):
        bounds = ordered(replace(bound("a"), pod=pod, writer="s 1"))
        mismatch = bounds.mismatch(hold(plain, HALF), GPUS)
        assert mismatch is not None and mismatch.reason is Reason.GRANT_UNCONFIRMED
