"""What is left to know of a card from those who were granted a share of it."""

from __future__ import annotations

from contract import allocation, names
from nri_plugin import bygone, ledger
from nri_plugin.ledger import Hold
from nri_plugin.model import Card, Pod, Share

GIB = 1 << 30


def hold(key: str, pod: str, *shares: Share) -> Hold:
    return ledger.hold(f"c-{key}", key, False, Pod(pod, "team", pod), "main", shares)


def entry(uuid: str | None, minor: int, memory_bytes: int | None = None) -> allocation.DeviceEntry:
    amount = {} if memory_bytes is None else {names.RESOURCE_MEMORY: memory_bytes}
    return allocation.DeviceEntry(minor, {names.RESOURCE_CORE: 10, **amount}, uuid)


def test_what_all_pods_were_granted_of_it() -> None:
    found = bygone.cards(
        [hold("a", "a", Share("GPU-0", 3, GIB, 10), Share("GPU-1", 4, GIB, 10))],
        {"b": [entry("GPU-0", 3, 2 * GIB)], "c": [entry("GPU-2", 5, GIB)]},
    )
    assert found == [Card("GPU-0", 3, 3 * GIB), Card("GPU-1", 4, GIB), Card("GPU-2", 5, GIB)]


def test_what_its_containers_hold_is_part_of_what_a_pod_was_granted() -> None:
    holds = [hold(key, "a", Share("GPU-0", 3, GIB, 10)) for key in ("x", "y")]
    for granted_gib in (2, 3):
        allocated = {"a": [entry("GPU-0", 3, granted_gib * GIB)]}
        assert bygone.cards(holds, allocated) == [Card("GPU-0", 3, granted_gib * GIB)]
    # Held once by whoever shares it.
    both = hold("pod-a", "a", Share("GPU-0", 3, GIB, 10))
    assert bygone.cards([both, both], {}) == [Card("GPU-0", 3, GIB)]


def test_what_the_annotation_leaves_out_its_containers_know() -> None:
    held = hold("a", "a", Share("GPU-0", 3, GIB, 10))
    for told in (entry(None, 3, GIB), entry("GPU-0", 3)):
        assert bygone.cards([held], {"a": [told]}) == [Card("GPU-0", 3, GIB)]
        assert bygone.cards([], {"a": [told]}) == []
    unnumbered = Hold("c", "c", "a", "main", "a", held.parts, held.pod)
    assert bygone.cards([unnumbered], {}) == []
