"""Reflector: lists and watches one kind of object, until cancelled.

A `Sink` receives the current state of every object, and every deletion. After each list it receives
the keys of all existing objects, so that it can remove objects whose deletion was missed. It never
receives an object's older state after a newer one.
A watch that ends is resumed at the last resourceVersion. The list is read again if that version is
no longer available (410), or if the watch failed so that the version may be invalid.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from gpuslice.kube.client import PAGE, Kube
from gpuslice.kube.errors import KubeError
from gpuslice.kube.fields import Json

UNLISTED: Final = "has not been listed yet"

_FIRST_S: Final = 0.1
_LONGEST_S: Final = 10.0
_PROGRESS_S: Final = 1.0
"""Least duration of a watch without events that counts as progress. After less, the backoff
continues. A watch with events, such as one that the server closed because the client is slow, is
resumed at once."""
_WATCH_S: Final = 300
"""The server ends a watch after this time, so that connections do not accumulate on one server."""
_RESUMABLE: Final = frozenset({0, 401, 403, 429, 503})
"""Statuses (0: no answer) after which the last resourceVersion is still valid."""
_AT_ONCE: Final = 100
"""Number of objects that are handled before the event loop may run other tasks."""


class Sink(Protocol):
    """Receiver of events. The methods are called on the event loop and must not block or raise."""

    def observed(self, raw: Json) -> str:
        """Record the object's current state. Return its key, or "" for an irrelevant object."""

    def deleted(self, raw: Json) -> None:
        """Record that the object was deleted. raw: its last state."""

    def listed(self, keys: set[str]) -> None:
        """Record the end of a list. keys: all existing objects; `observed` has received each."""


@dataclass
class Backoff:
    """Delay before a retry, which doubles each time up to a bound. jitter: returns a random number
    from 0 to 1, so that many clients do not reconnect at the same time."""

    jitter: Callable[[], float] = random.random
    _next_s: float = _FIRST_S

    def reset(self) -> None:
        self._next_s = _FIRST_S

    def next_s(self) -> float:
        wait_s, self._next_s = self._next_s, min(2 * self._next_s, _LONGEST_S)
        return wait_s * (0.5 + self.jitter() / 2)


@dataclass(eq=False)
class Reflector:
    """Reflector of one kind. path: the list's path. only, page, query: see Kube.list."""

    kube: Kube
    path: str
    sink: Sink
    only: str = ""
    query: Mapping[str, Any] = field(default_factory=dict)
    page: int = PAGE
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random
    problem: str = UNLISTED
    """Why the current state is unknown; "" if it is known."""
    listing: bool = False
    """Whether the sink is receiving a list, which is not in chronological order."""
    lists: int = 0
    received_s: float | None = None
    """When the API server last sent anything; None: never."""
    waited_s: float = 0.0
    """Delay before the last retry."""
    _version: str = ""
    _watching_s: float = math.inf
    _wanted: int = 1
    _listed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _answered: int = 0
    _cycle: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._backoff = Backoff(self.jitter)

    @property
    def synced(self) -> bool:
        """Whether all objects have been received once."""
        return self._answered > 0

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self._cycle = asyncio.create_task(self._follow(), name=f"follow {self.path}")
            try:
                await asyncio.wait({self._cycle})
            except asyncio.CancelledError:
                self._cycle.cancel()
                await asyncio.wait({self._cycle})
                raise
            if not self._cycle.cancelled():
                self._cycle.result()

    async def relist(self) -> None:
        """Read the list again. Return once the sink has received all of it."""
        self._wanted = wanted = self._wanted + 1
        if self._cycle is not None:
            self._cycle.cancel()
        async with self._listed:
            await self._listed.wait_for(lambda: self._answered >= wanted)

    async def wait_synced(self) -> None:
        async with self._listed:
            await self._listed.wait_for(lambda: self.synced)

    async def _follow(self) -> None:
        while True:
            self._watching_s, ended, reached = math.inf, False, self._version
            try:
                if not self._version or self._answered < self._wanted:
                    await self._list()
                reached = self._version
                await self._watch()
                ended = True
            except KubeError as error:
                self.problem = str(error)
                if error.status not in _RESUMABLE:
                    self._version = ""
            lasted = self.clock() - self._watching_s >= _PROGRESS_S
            helped = lasted or self._version not in ("", reached)
            if helped:
                self._backoff.reset()
            self.waited_s = 0.0 if ended and helped else self._backoff.next_s()
            await asyncio.sleep(self.waited_s)

    async def _list(self) -> None:
        self.listing = True
        try:
            await self._deliver_all()
        finally:
            self.listing = False

    async def _deliver_all(self) -> None:
        wanted, keys, version = self._wanted, set[str](), ""
        pages = self.kube.list(self.path, only=self.only, page=self.page, **self.query)
        async with aclosing(pages):
            async for items, listed_at in pages:
                version = listed_at
                for start in range(0, len(items), _AT_ONCE):
                    keys.update(map(self.sink.observed, items[start : start + _AT_ONCE]))
                    await asyncio.sleep(0)
                self.received_s = self.clock()
        keys.discard("")
        self.sink.listed(keys)
        self._version, self.problem = version, ""
        self.lists += 1
        async with self._listed:
            self._answered = wanted
            self._listed.notify_all()

    async def _watch(self) -> None:
        seconds = int(_WATCH_S * (0.5 + self.jitter() / 2))
        batches = self.kube.watch(
            self.path, self._version, only=self.only, timeoutSeconds=seconds, **self.query
        )
        async with aclosing(batches):
            async for batch in batches:
                if not batch:
                    self._watching_s = self.clock()
                self.received_s, self.problem = self.clock(), ""
                for event in batch:
                    self._deliver(event)

    def _deliver(self, event: Json) -> None:
        kind, raw = event.get("type"), event["object"]
        if kind == "DELETED":
            self.sink.deleted(raw)
        elif kind != "BOOKMARK":
            self.sink.observed(raw)
        self._version = raw["metadata"]["resourceVersion"]
