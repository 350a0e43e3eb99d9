"""Kinds of waiting pods: the queue of each, and the nodes that kube-scheduler accepts for it.

Pods of equal constraints are one kind. Its candidates are the nodes that kube-scheduler last sent
with `filter` for a pod of the kind. Its queue has the pods to nominate, in order. Pure.

Bounded: a queue has only pods that are to be nominated, and MAX_KINDS kinds have candidates; with
more, those recorded the longest ago lose them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from scheduler.core.fleet import Rows
from scheduler.core.request import Shape

MAX_KINDS: Final = 256
"""Kinds with candidates: 8 bytes per candidate each."""

Order = tuple[int, str, int]
"""Sorts as kube-scheduler's queue: by priority, then by creation, then by arrival."""


@dataclass(slots=True)
class PodKind:
    """queue: pods by order and UID. candidates: None until kube-scheduler has sent them. latest: of
    the last nomination, the request's shape and the row. probe: the pod that is not
    nominated, so that kube-scheduler's search renews the candidates."""

    queue: list[tuple[Order, str]] = field(default_factory=list)
    candidates: Rows | None = None
    recorded_s: float = 0.0
    latest: tuple[Shape, int] | None = None
    probe: str = ""


class PodKinds:
    """Keys are the pods' constraints."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, PodKind] = {}
        self._with_candidates: dict[bytes, PodKind] = {}
        """Kinds with candidates, those recorded the longest ago first."""

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: bytes) -> PodKind | None:
        return self._by_key.get(key)

    @property
    def with_candidates(self) -> Collection[PodKind]:
        """Kinds with candidates."""
        return self._with_candidates.values()

    def enter(self, key: bytes, order: Order, uid: str) -> None:
        """Adds the pod to its kind's queue."""
        insort(self._by_key.setdefault(key, PodKind()).queue, (order, uid))

    def leave(self, key: bytes, order: Order, uid: str) -> None:
        """Removes the pod from its kind's queue, if it is there."""
        kind = self._by_key.get(key)
        if kind is None:
            return
        at = bisect_left(kind.queue, (order, uid))
        if at < len(kind.queue) and kind.queue[at] == (order, uid):
            del kind.queue[at]
        self._discard(key, kind)

    def record_candidates(self, key: bytes, candidates: Rows, now_s: float) -> None:
        kind = self._by_key.setdefault(key, PodKind())
        kind.candidates, kind.recorded_s, kind.latest, kind.probe = candidates, now_s, None, ""
        self._with_candidates.pop(key, None)
        self._with_candidates[key] = kind
        if len(self._with_candidates) > MAX_KINDS:
            self.drop_candidates(next(iter(self._with_candidates)))

    def drop_candidates(self, key: bytes) -> None:
        """The kind has no candidates until the next search."""
        kind = self._with_candidates.pop(key, None)
        if kind is not None:
            kind.candidates = kind.latest = None
            self._discard(key, kind)

    def _discard(self, key: bytes, kind: PodKind) -> None:
        if not kind.queue and kind.candidates is None:
            del self._by_key[key]
