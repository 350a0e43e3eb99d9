"""Adds up what each pod holds of which GPU, and says what is wrong: the judge of every load.

Knows nothing of the scheduler: it reads what the API server has, as JSON, and adds with plain
loops. Its pods have main containers only, each of which asks in Koordinator's percentages, or for
nothing.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any, Final

Json = Mapping[str, Any]

_UNITS: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@dataclass
class Card:
    node: str
    uuid: str
    minor: int
    total_bytes: int
    held_bytes: int = 0
    held_core: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """What one container asks for: of each of `cards` GPUs, so many percent."""

    cards: int
    memory_percent: int
    core_percent: int


_NOTHING: Final = Share(0, 0, 0)


@dataclass
class Books:
    """cards: by UUID. wrong: what does not add up, for people. pending: UIDs of pods that wait.
    bound: UIDs of those that have a node."""

    cards: dict[str, Card] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    pending: dict[str, Sequence[Share]] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)

    @property
    def fitting(self) -> set[str]:
        """UIDs of the pending pods that some node has room for, each by itself."""
        nodes: dict[str, list[Card]] = defaultdict(list)
        for card in self.cards.values():
            nodes[card.node].append(card)
        # Few kinds of pods and many that are alike.
        fits: dict[Sequence[Share], bool] = {}
        for asks in self.pending.values():
            if asks not in fits:
                fits[asks] = any(_fits(cards, asks) for cards in nodes.values())
        return {uid for uid, asks in self.pending.items() if fits[asks]}


def books(pods: Sequence[Json], devices: Sequence[Json]) -> Books:
    made = Books()
    for device in devices:
        for entry in device["spec"]["devices"]:
            size = _bytes(entry["resources"]["koordinator.sh/gpu-memory"])
            name = device["metadata"]["name"]
            made.cards[entry["id"]] = Card(name, entry["id"], entry["minor"], size)
    for pod in pods:
        if pod["status"].get("phase") in ("Succeeded", "Failed"):
            continue
        uid = pod["metadata"]["uid"]
        if pod["spec"].get("nodeName"):
            made.bound.add(uid)
            _enter(made, pod)
        else:
            made.pending[uid] = asks_of(pod)
            if "gpuslice.io/grants" in pod["metadata"].get("annotations", {}):
                made.wrong.append(f"{_name(pod)}: has grants and no node")
    for card in made.cards.values():
        if card.held_bytes > card.total_bytes or card.held_core > 100:
            made.wrong.append(
                f"{card.node}, minor {card.minor}: {card.held_bytes} of {card.total_bytes} bytes"
                f" and {card.held_core} percent of core are given out"
            )
    return made


def asks_of(pod: Json) -> Sequence[Share]:
    asks = []
    for container in pod["spec"]["containers"]:
        asked = container.get("resources", {}).get("requests", {})
        percent = int(asked.get("koordinator.sh/gpu-memory-ratio", 0))
        core = int(asked.get("koordinator.sh/gpu-core", 0))
        if not percent and not core:
            asks.append(_NOTHING)
            continue
        cards = int(asked.get("koordinator.sh/gpu.shared", max(1, percent // 100)))
        asks.append(Share(cards, percent // cards, core // cards))
    return tuple(asks)


def _enter(into: Books, pod: Json) -> None:
    """What the pod holds, by its grants; and whether these are what it asked for, and the same as
    its allocation."""
    annotations = pod["metadata"].get("annotations", {})
    try:
        granted = json.loads(annotations["gpuslice.io/grants"])["containers"]
        allocated = json.loads(annotations["scheduling.koordinator.sh/device-allocated"])["gpu"]
    except KeyError as error:
        into.wrong.append(f"{_name(pod)}: is bound without {error}")
        return
    by_card: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for container, asks in zip(pod["spec"]["containers"], asks_of(pod), strict=True):
        shares = granted.get(container["name"], [])
        if len({share["id"] for share in shares}) != asks.cards:
            into.wrong.append(f"{_name(pod)}: {container['name']} has {shares}, asked {asks}")
        for share in shares:
            card = into.cards.get(share["id"])
            if card is None or card.node != pod["spec"]["nodeName"] or card.minor != share["minor"]:
                into.wrong.append(f"{_name(pod)}: {share['id']} is no card of its node")
                continue
            wanted = card.total_bytes * asks.memory_percent // 100, asks.core_percent
            if (share["memory"], share["core"]) != wanted:
                into.wrong.append(f"{_name(pod)}: has {share}, asked {asks}")
            card.held_bytes += share["memory"]
            card.held_core += share["core"]
            by_card[share["id"]][0] += share["memory"]
            by_card[share["id"]][1] += share["core"]
    said = {
        entry["id"]: [
            _bytes(entry["resources"]["koordinator.sh/gpu-memory"]),
            int(entry["resources"]["koordinator.sh/gpu-core"]),
        ]
        for entry in allocated
    }
    if said != by_card:
        into.wrong.append(f"{_name(pod)}: its allocation {said} is not its grants' sum {by_card}")


def _fits(cards: Sequence[Card], asks: Sequence[Share]) -> bool:
    """Whether the node has room for all the containers at once: each way is tried."""
    ways = product(*(combinations(cards, ask.cards) for ask in asks))
    return any(_has_room(way, asks) for way in ways)


def _has_room(way: Sequence[Sequence[Card]], asks: Sequence[Share]) -> bool:
    size: dict[str, int] = defaultdict(int)
    core: dict[str, int] = defaultdict(int)
    for chosen, ask in zip(way, asks, strict=True):
        for card in chosen:
            size[card.uuid] += card.total_bytes * ask.memory_percent // 100
            core[card.uuid] += ask.core_percent
    return all(
        card.held_bytes + size[card.uuid] <= card.total_bytes
        and card.held_core + core[card.uuid] <= 100
        for chosen in way
        for card in chosen
    )


def _bytes(text: str) -> int:
    unit = _UNITS.get(text[-2:])
    return int(text) if unit is None else int(text[:-2]) * unit


def _name(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
