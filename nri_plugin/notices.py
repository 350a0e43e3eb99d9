"""What a pod's author should read in an event: kept until it is written, once for each container.

Plain state: filled on the event loop by the parts that find something, emptied by events.py, where
there is an API server. What was told is remembered while its pod's containers live, however many
there are: a driver that fails is found again in every round, for every pod of the node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Final

from nri_plugin.model import Pod

_MOST: Final = 128
"""Beyond so many, those of pods that are no more are forgotten."""


@dataclass(frozen=True, slots=True)
class Notice:
    """reason: one word of contract.names. of_node: the node's event, since the API server does not
    have the pod. action: what the container was about."""

    pod: Pod
    container: str
    reason: str
    text: str
    of_node: bool = False
    action: str = "Start"


class Notices:
    """live: the UIDs of pods of which a container lives."""

    def __init__(self, live: Callable[[], Container[str]] = frozenset) -> None:
        self._live = live
        self._waiting: deque[Notice] = deque()
        self._told: dict[tuple[str, str, str], None] = {}
        self._look_at = _MOST

    def add(self, notice: Notice) -> bool:
        """Whether it is news."""
        key = (notice.pod.uid, notice.container, notice.reason)
        if key in self._told:
            return False
        if len(self._told) >= self._look_at:
            self._forget()
        self._told[key] = None
        self._waiting.append(notice)
        return True

    def first(self) -> Notice | None:
        return self._waiting[0] if self._waiting else None

    def _forget(self) -> None:
        live = self._live()
        self._told = {key: None for key in self._told if key[0] in live}
        self._waiting = deque(notice for notice in self._waiting if notice.pod.uid in live)
        self._look_at = _MOST + 2 * len(self._told)

    def done(self, notice: Notice) -> None:
        """It is written, or will never be."""
        if notice in self._waiting:
            self._waiting.remove(notice)
