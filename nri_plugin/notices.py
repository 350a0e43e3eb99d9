"""What a pod's author should read in an event: kept until somebody writes it, the newest of it.

Plain state: filled on the event loop by who finds something, emptied by who speaks to the API
server, where there is one. A container that starts again and again is told of once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from nri_plugin.model import Pod

_MOST: Final = 128
"""Events that wait, and containers of which is known that they were told."""


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
    def __init__(self) -> None:
        self._waiting: deque[Notice] = deque(maxlen=_MOST)
        self._told: dict[tuple[str, str, str], None] = {}

    def add(self, notice: Notice) -> bool:
        """Whether it is news."""
        key = (notice.pod.uid, notice.container, notice.reason)
        if key in self._told:
            return False
        self._told[key] = None
        if len(self._told) > _MOST:
            del self._told[next(iter(self._told))]
        self._waiting.append(notice)
        return True

    def first(self) -> Notice | None:
        return self._waiting[0] if self._waiting else None

    def done(self, notice: Notice) -> None:
        """It is written, or will never be."""
        if notice in self._waiting:
            self._waiting.remove(notice)
