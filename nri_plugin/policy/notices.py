"""Pending Events for pod authors, at most one per container and cause.

Modules on the event loop add notices. reports.py writes them if there is an API server. A written
notice is remembered while its pod has a running container. Otherwise a fault that the agent detects
repeatedly, for example of a driver, would be written each time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Final

from nri_plugin.policy.model import Pod

_MAX: Final = 128
"""Number of notices above which those of pods without a running container are dropped."""


@dataclass(frozen=True, slots=True)
class Notice:
    """An Event to write. reason: an EVENT_ constant of gpuslice.contract.names. of_node: the Event
    is for the node, because the API server does not have the pod. action: what the container was
    doing. warning: the Event's type is Warning, else Normal."""

    pod: Pod
    container: str
    reason: str
    text: str
    of_node: bool = False
    action: str = "Start"
    warning: bool = True


class Notices:
    """The pending notices. live: returns the UIDs of pods that have a running container."""

    def __init__(self, live: Callable[[], Container[str]] = frozenset) -> None:
        self._live = live
        self._waiting: deque[Notice] = deque()
        self._added: dict[tuple[str, str, str], None] = {}
        self._clean_up_at = _MAX

    def add(self, notice: Notice) -> bool:
        """Add the notice. Return False if its pod, container and reason were added before."""
        key = (notice.pod.uid, notice.container, notice.reason)
        if key in self._added:
            return False
        if len(self._added) >= self._clean_up_at:
            self._clean_up()
        self._added[key] = None
        self._waiting.append(notice)
        return True

    def first(self) -> Notice | None:
        return self._waiting[0] if self._waiting else None

    def _clean_up(self) -> None:
        live = self._live()
        self._added = {key: None for key in self._added if key[0] in live}
        self._waiting = deque(notice for notice in self._waiting if notice.pod.uid in live)
        self._clean_up_at = _MAX + 2 * len(self._added)

    def done(self, notice: Notice) -> None:
        """Remove a notice that is written, or that can never be written."""
        if notice in self._waiting:
            self._waiting.remove(notice)
