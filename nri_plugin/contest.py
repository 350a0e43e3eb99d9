"""Whether another program writes the same fields of an object, again and again.

Two programs that each put right what the other wrote load the API server without end, and the
node's totals mean nothing meanwhile. So the agent counts how often what it wrote was taken back,
and stops writing for a while. Pure: the clock is the caller's.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

MOST: Final = 5
"""More than a kubelet does, which sets totals to zero when it starts."""
WINDOW_S: Final = 600.0
"""In which so many are a contest; for as long the agent then writes nothing."""
MANAGER: Final = "gpuslice-agent"
"""The agent's name in managedFields: the first part of its user agent."""

_FIELDS: Final = re.compile("f:devices|f:koordinator.sh/gpu")


class Contest:
    """Over one object. now: a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._taken_back: deque[float] = deque(maxlen=MOST)
        self._wanted: object = None
        self._version = ""
        self._silent_until = self._over_at = now()

    def may_write(self, wanted: object, version: str) -> bool:
        """Called where the object differs from what is wanted. version: its resourceVersion."""
        now = self._now()
        if now < self._silent_until:
            return False
        if self._wanted == wanted and version != self._version:
            self._taken_back.append(now)
            if self._over_at > now:
                self._over_at = now + WINDOW_S
        self._wanted, self._version = wanted, version
        if len(self._taken_back) < MOST or now - self._taken_back[0] > WINDOW_S:
            return True
        self._taken_back.clear()
        self._wanted = None
        self._silent_until, self._over_at = now + WINDOW_S, now + 2 * WINDOW_S
        return False

    @property
    def lasts(self) -> bool:
        """Whether there was a contest, and nothing tells yet that it is over."""
        return self._now() < self._over_at


def other_writer(raw: Mapping[str, Any]) -> str:
    """By managedFields, which program beside the agent wrote the object last; "": not known."""
    others = [
        (str(entry.get("time", "")), str(entry.get("manager", "")))
        for entry in raw.get("metadata", {}).get("managedFields") or ()
        if entry.get("manager") != MANAGER and _FIELDS.search(str(entry.get("fieldsV1")))
    ]
    return max(others)[1] if others else ""
