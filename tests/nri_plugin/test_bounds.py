"""Who was bound when, and for whom there was no room: against a plain loop, in any order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract import allocation, grants, names
from nri_plugin import ledger
from nri_plugin.bounds import Bounds
from nri_plugin.errors import Reason
from nri_plugin.ledger import Hold
from nri_plugin.model import Card, Pod, Share
from nri_plugin.objects import Bound
from nri_plugin.totals import Entry

GIB = 1 << 30
CARDS = (Card("GPU-0", 0, 8 * GIB), Card("GPU-1", 1, 4 * GIB))
NOBODY: frozenset[str] = frozenset()
LABEL = names.LABEL_ISOLATION_PROVIDER


def allocated(card: int, memory_bytes: int, core: int | None = 10, uuid: str | None = "") -> str:
    resources = {names.RESOURCE_MEMORY: memory_bytes}
    if core is not None:
        resources[names.RESOURCE_CORE] = core
    entry = allocation.DeviceEntry(card, resources, CARDS[card].uuid if uuid == "" else uuid)
    return allocation.encode(allocation.Allocation({names.DEVICE_TYPE_GPU: (entry,)}))


def bound(
    uid: str, memory_bytes: int = GIB, card: int = 0, core: int | None = 10, scheduled: str = ""
) -> Bound:
    annotations = {names.ANNOTATION_DEVICE_ALLOCATED: allocated(card, memory_bytes, core)}
    pod = Pod(uid, "team", f"pod-{uid}", {LABEL: "hami-core"}, annotations)
    asked = {names.RESOURCE_MEMORY: memory_bytes}
    return Bound(pod, "1", scheduled, finished=False, leaving=False, asked=asked)


def over(bounds: Bounds, holding: frozenset[str] = NOBODY) -> set[str]:
    return set(bounds.over(CARDS, holding))


asks = st.lists(
    st.tuples(st.integers(0, 1), st.integers(1, 8), st.none() | st.integers(0, 100)), max_size=8
)


@given(asks, st.data())
def test_in_the_order_of_binding_who_has_room_has_it(
    asked: Sequence[tuple[int, int, int | None]], data: st.DataObject
) -> None:
    """The first so many come by a list, which knows when each was bound; the others by a watch."""
    listed = data.draw(st.integers(0, len(asked)))
    pods = [
        bound(f"{number}", gib * GIB, card, core, f"2026-01-01T00:00:{number:02}Z")
        for number, (card, gib, core) in enumerate(asked)
    ]
    bounds = Bounds()
    for each in data.draw(st.permutations(pods[:listed])):
        bounds.put(each, listing=True)
    bounds.keep({each.pod.uid for each in pods[:listed]})
    for each in pods[listed:]:
        bounds.put(each, listing=False)
    left = {(0, "m"): 8 * GIB, (1, "m"): 4 * GIB, (0, "c"): 100, (1, "c"): 100}
    expected = set()
    for each, (card, gib, core) in zip(pods, asked, strict=True):
        if gib * GIB > CARDS[card].memory_bytes:
            continue  # refused for itself, and in nobody's way
        if gib * GIB <= left[card, "m"] and (core or 0) <= left[card, "c"]:
            left[card, "m"] -= gib * GIB
            left[card, "c"] -= core or 0
        else:
            expected.add(each.pod.uid)
    assert over(bounds) == expected
    for uid in expected:
        bounds.lost(uid)
    assert over(bounds) == set()


def test_the_watch_is_believed_and_not_the_clock() -> None:
    bounds = Bounds()
    bounds.put(bound("b", 5 * GIB, scheduled="2026-01-01T00:00:09Z"), listing=False)
    bounds.put(bound("a", 5 * GIB, scheduled="2026-01-01T00:00:00Z"), listing=False)
    assert over(bounds) == {"a"}
    # What comes with a later list comes behind, whenever it says that it was bound.
    bounds.put(bound("c", 3 * GIB, scheduled="2025-01-01T00:00:00Z"), listing=True)
    assert over(bounds) == {"a"}
    bounds.put(bound("d", 3 * GIB, scheduled="2024-01-01T00:00:00Z"), listing=True)
    assert over(bounds) == {"a", "c"}


def test_who_came_with_his_node_is_behind_those_that_were_bound() -> None:
    bounds = Bounds()
    bounds.put(bound("a", 5 * GIB), listing=True)
    bounds.put(bound("b", 5 * GIB, scheduled="2026-01-01T00:00:00Z"), listing=True)
    assert over(bounds) == {"a"}
    assert over(bounds, frozenset({"a"})) == {"a"}


def test_bound_in_one_second_who_runs_stays() -> None:
    bounds = Bounds()
    for uid in "ab":
        bounds.put(bound(uid, 5 * GIB, scheduled="2026-01-01T00:00:00Z"), listing=True)
    assert over(bounds) == {"b"}
    assert over(bounds, frozenset({"b"})) == {"a"}


def test_a_pod_keeps_its_place_and_gives_its_room_back() -> None:
    bounds = Bounds()
    first, second = bound("a", 5 * GIB), bound("b", 5 * GIB)
    bounds.put(first, listing=False)
    bounds.put(second, listing=False)
    bounds.put(replace(first, version="2", leaving=True), listing=False)
    assert over(bounds) == {"b"}
    found = bounds.pod("a")
    assert found is not None and found.leaving
    bounds.put(replace(first, finished=True), listing=False)
    bounds.lost("a")
    assert over(bounds) == set()
    assert bounds.pod("a") is None


def test_a_pod_whose_grant_was_changed_keeps_its_place() -> None:
    bounds = Bounds()
    bounds.put(bound("a", GIB), listing=False)
    bounds.put(bound("b", 5 * GIB), listing=False)
    assert over(bounds) == set()
    bounds.put(bound("a", 5 * GIB), listing=False)
    assert over(bounds) == {"b"}


def test_the_refusal_says_who_has_it() -> None:
    bounds = Bounds()
    bounds.put(bound("a", 5 * GIB), listing=False)
    bounds.put(bound("b", 5 * GIB), listing=False)
    said = bounds.over(CARDS, NOBODY)["b"].text
    assert said == (
        f"card GPU-0 was full when the pod was bound: it was granted {5 * GIB} bytes of memory,"
        f" {3 * GIB} of {8 * GIB} were left; pods that were bound before it hold: team/pod-a"
        f" {5 * GIB}"
    )


def test_what_all_ask_for_and_which_cards_they_have() -> None:
    bounds = Bounds()
    bounds.put(bound("a", GIB), listing=True)
    bounds.put(bound("b", GIB, card=1), listing=True)
    by_minor = {names.ANNOTATION_DEVICE_ALLOCATED: allocated(1, GIB, uuid=None)}
    bounds.put(replace(bound("c"), pod=Pod("c", "t", "c", {}, by_minor)), listing=True)
    odd = {names.ANNOTATION_DEVICE_ALLOCATED: "["}
    bounds.put(replace(bound("d"), pod=Pod("d", "t", "d", {}, odd)), listing=True)
    bounds.put(replace(bound("e"), pod=Pod("e", "t", "e")), listing=True)
    assert bounds.asked() == {names.RESOURCE_MEMORY: 5 * GIB}
    assert bounds.granted([Entry(Card("GPU-9", 1, GIB), True)]) == {"GPU-0", "GPU-1", "GPU-9"}
    assert over(bounds) == set()
    bounds.keep({"b"})
    assert bounds.granted([]) == {"GPU-1"}
    assert bounds.asked() == {names.RESOURCE_MEMORY: GIB}


# --- what the runtime tells of a pod


def test_a_pod_that_is_as_the_api_server_has_it() -> None:
    bounds, known = Bounds(), bound("a")
    assert bounds.objection(known.pod, CARDS, NOBODY) is None
    bounds.put(known, listing=False)
    told = replace(known.pod, labels={**known.pod.labels, "app": "x"})
    assert bounds.objection(told, CARDS, NOBODY) is None


@pytest.mark.parametrize(
    "told",
    [
        replace(bound("a").pod, labels={}),
        replace(bound("a").pod, annotations={}),
        bound("a", 2 * GIB).pod,
        replace(
            bound("a").pod,
            annotations={**bound("a").pod.annotations, names.ANNOTATION_GRANTS: "{}"},
        ),
    ],
)
def test_a_pod_that_says_something_else(told: Pod) -> None:
    for tell in (Bounds.vouch, lambda bounds, known: bounds.put(known, listing=False)):
        bounds = Bounds()
        tell(bounds, bound("a"))
        objection = bounds.objection(told, CARDS, NOBODY)
        assert objection is not None
        assert objection.reason is Reason.GRANT_UNCONFIRMED
        assert " is another there" in objection.text
        assert set(bounds.objected()) <= {"a"}
        bounds.put(bound("a"), listing=False)
        assert bounds.objected() == {"a": objection}
        bounds.put(replace(bound("a"), pod=told), listing=False)
        assert bounds.objected() == {}
        bounds.lost("a")
        assert bounds.objected() == {}


def test_a_pod_without_room_is_refused() -> None:
    bounds = Bounds()
    bounds.put(bound("a", 5 * GIB), listing=False)
    bounds.put(late := bound("b", 5 * GIB), listing=False)
    objection = bounds.objection(late.pod, CARDS, NOBODY)
    assert objection is not None and objection.reason is Reason.GRANT_OVERFILLS


def test_who_is_not_known_is_asked_about_once() -> None:
    bounds, pod = Bounds(), bound("a").pod
    assert not bounds.unknown(pod)  # there is nobody to ask

    async def ask(pod: Pod) -> None:
        bounds.deny(pod.uid, "there is no such pod")

    bounds.ask = ask
    assert bounds.unknown(pod)
    asyncio.run(ask(pod))
    assert not bounds.unknown(pod)
    assert bounds.denied("a") == "there is no such pod"
    objection = bounds.objection(pod, CARDS, NOBODY)
    assert objection is not None and "there is no such pod" in objection.text
    bounds.put(bound("a"), listing=False)
    assert bounds.objection(pod, CARDS, NOBODY) is None
    bounds.vouch(bound("b"))
    assert not bounds.unknown(bound("b").pod)
    bounds.keep({"a"})
    assert bounds.unknown(bound("b").pod)


def test_not_more_is_remembered_than_a_node_needs() -> None:
    bounds = Bounds()
    for number in range(1000):
        bounds.deny(f"{number}", "no")
    assert [bounds.denied(f"{number}") for number in (0, 700, 999)] == ["", "", "no"]


# --- what a container holds


def hold(pod: Pod, *shares: Share, container: str = "main") -> Hold:
    return ledger.hold("c0ffee", "c0ffee", False, pod, container, shares)


HALF = Share("GPU-0", 0, GIB, 10)


def test_what_is_granted_is_not_doubted() -> None:
    bounds, known = Bounds(), bound("a")
    assert bounds.doubt(hold(known.pod, HALF), CARDS) is None  # not known
    bounds.put(known, listing=False)
    for shares in ([], [HALF], [Share("GPU-0", 0, GIB // 2, 100, uncapped=True)]):
        assert bounds.doubt(hold(known.pod, *shares), CARDS) is None
    # A card that failed says nothing against who has it.
    assert bounds.doubt(hold(known.pod, HALF), CARDS[1:]) is None


@pytest.mark.parametrize(
    "held",
    [Share("GPU-0", 0, GIB + 1, 10), Share("GPU-0", 0, GIB, 11), Share("GPU-1", 1, 1, 0)],
)
def test_who_holds_more_is_doubted(held: Share) -> None:
    bounds, known = Bounds(), bound("a")
    bounds.put(known, listing=False)
    doubt = bounds.doubt(hold(known.pod, held), CARDS)
    assert doubt is not None and doubt.reason is Reason.GRANT_UNCONFIRMED
    assert f"has {held.memory_bytes} bytes" in doubt.text


def test_whose_pod_was_granted_nothing_is_doubted() -> None:
    plain = Pod("a", "team", "pod-a")
    odd = replace(plain, annotations={names.ANNOTATION_DEVICE_ALLOCATED: "["})
    written = {names.ANNOTATION_GRANTS: grants.encode({"other": []})}
    other = bound("a").pod
    other = replace(other, annotations={**other.annotations, **written})
    for pod in (plain, odd, other):
        bounds = Bounds()
        bounds.put(replace(bound("a"), pod=pod), listing=False)
        doubt = bounds.doubt(hold(bound("a").pod, HALF), CARDS)
        assert doubt is not None and doubt.reason is Reason.GRANT_UNCONFIRMED
