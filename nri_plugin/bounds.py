"""The pods of this node as the API server has them: what they were granted, in the order of their
binding.

Pure: told by the watch, asked by whoever creates containers and writes totals. Kept is what says
what a pod was granted and what it asks for, of a node's pods, so its size is bounded by them.

The order in which pods were bound is that in which the watch told of them: a pod comes to it with
its binding. Of a list's pods, which come in no order, the time of their binding is known to the
second; a pod that was bound by nobody, but came with its node, is behind those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from contract import allocation, names
from nri_plugin.objects import Bound
from nri_plugin.totals import Entry

_NEVER: Final = "~"
"""Behind every time."""


@dataclass(frozen=True, slots=True)
class Place:
    """In the order of binding: of which batch, and within it when and who."""

    batch: int
    scheduled: str
    uid: str


class Bounds:
    """Empty, until somebody tells."""

    def __init__(self) -> None:
        self.version = 0
        """Another one where anything has changed."""
        self._pods: dict[str, Bound] = {}
        self._places: dict[str, Place] = {}
        self._granted: dict[str, tuple[allocation.DeviceEntry, ...]] = {}
        self._batch = 0
        self._listing = False

    def put(self, bound: Bound, listing: bool) -> None:
        """It is there, as it is now. listing: told by a list. One that has finished is gone."""
        uid = bound.pod.uid
        if bound.finished:
            self.lost(uid)
            return
        if self._pods.get(uid) == bound:
            return
        if uid not in self._places:
            if not (listing and self._listing):
                self._batch += 1
            self._listing = listing
            self._places[uid] = Place(self._batch, bound.scheduled or _NEVER, uid)
        self._pods[uid] = bound
        self._granted[uid] = _entries(bound)
        self.version += 1

    def lost(self, uid: str) -> None:
        if self._pods.pop(uid, None) is not None:
            del self._places[uid], self._granted[uid]
            self.version += 1

    def keep(self, uids: AbstractSet[str]) -> None:
        """No others are there; a list has ended."""
        self._listing = False
        for uid in self._pods.keys() - uids:
            self.lost(uid)

    def asked(self) -> Mapping[str, int]:
        """By resource, what all of them ask for together."""
        total: dict[str, int] = {}
        for bound in self._pods.values():
            for key, amount in bound.asked.items():
                total[key] = total.get(key, 0) + amount
        return total

    def granted(self, listed: Iterable[Entry]) -> AbstractSet[str]:
        """The cards of which they were granted a share. listed: the Device's, since Koordinator may
        name a card by its minor alone."""
        by_minor = {entry.card.minor: entry.card.uuid for entry in listed}
        found = {
            entry.id or by_minor.get(entry.minor)
            for entries in self._granted.values()
            for entry in entries
        }
        return frozenset(uuid for uuid in found if uuid)


def _entries(bound: Bound) -> tuple[allocation.DeviceEntry, ...]:
    """What cannot be read names no card that could be kept for it."""
    text = bound.pod.annotations.get(names.ANNOTATION_DEVICE_ALLOCATED)
    try:
        return tuple(allocation.decode(text).gpus) if text is not None else ()
    except allocation.AllocationError:
        return ()
