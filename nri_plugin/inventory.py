"""The cards of this node, as NVML tells them: asked in a child process, under a deadline.

What the child does is in nvml.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from contract.log_lines import Line
from nri_plugin.child import Child
from nri_plugin.errors import ChildError, InventoryError
from nri_plugin.model import Card

_LOG: Final = logging.getLogger(__name__)

_REST: Final = 20
"""Times what a look took, before the next one that nobody is in need of: NVML's own start takes
seconds where persistence mode is off, and wakes the cards."""


def pace_s(took_s: float, shortest_s: float, longest_s: float) -> float:
    """From one look to the next, so that looks have no more than a twentieth of the time."""
    return min(longest_s, max(shortest_s, _REST * took_s))


class Inventory:
    """The cards, kept; asked anew on demand, at most once in `min_interval_s`.

    now: a monotonic clock in seconds.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        deadline_s: float,
        min_interval_s: float,
        now: Callable[[], float],
        command: Sequence[str] = (sys.executable, "-m", "nri_plugin.nvml"),
    ) -> None:
        self._child = Child(command, environment, deadline_s=deadline_s, whom="NVML")
        self._min_interval_s = min_interval_s
        self._now = now
        self._cards: Sequence[Card] = ()
        self._seen: Sequence[Card] = ()
        self._asked_at: float | None = None
        self.took_s = 0.0
        """The last look, from its beginning to its answer, or to its failure."""
        self._refreshing: asyncio.Task[None] | None = None
        self._problem: str | None = "the cards have not been asked for yet"

    @property
    def cards(self) -> Sequence[Card]:
        """What the last successful look found, without the cards that are in trouble."""
        return self._cards

    @property
    def seen(self) -> Sequence[Card]:
        """What it found, those in trouble too."""
        return self._seen

    @property
    def problem(self) -> str | None:
        """Why the last look failed; None if it did not."""
        return self._problem

    async def refresh(self) -> None:
        """Look again, unless it was done just now; on failure the cards stay, and it is logged.

        Callers may be cancelled; the look goes on and serves the next one.
        """
        self.look(self._min_interval_s)
        if self._refreshing is not None:
            await asyncio.shield(self._refreshing)

    def look(self, max_age_s: float) -> None:
        """Begin a look, unless one was begun in the last `max_age_s`; returns at once."""
        due = self._asked_at is None or self._now() - self._asked_at >= max_age_s
        if due and (self._refreshing is None or self._refreshing.done()):
            self._asked_at = self._now()
            self._refreshing = asyncio.create_task(self._refresh(), name="inventory")

    async def close(self) -> None:
        """End a look that is under way."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._refreshing

    async def _refresh(self) -> None:
        began_s = self._now()
        try:
            seen = await self._ask()
        except InventoryError as error:
            level = logging.DEBUG if str(error) == self._problem else logging.ERROR
            self._problem = str(error)
            _LOG.log(level, Line("inventory failed", error=error, cards=len(self._cards)))
        else:
            new = self._problem is not None or seen != self._seen
            self._problem, self._seen = None, seen
            self._cards = tuple(card for card in seen if not card.problem)
            uuids = ",".join(card.uuid for card in self._cards)
            level = logging.INFO if new else logging.DEBUG
            _LOG.log(level, Line("inventory", cards=len(self._cards), uuids=uuids))
            for card in seen if new else ():
                if card.problem:
                    _LOG.error(Line("card in trouble", uuid=card.uuid, problem=card.problem))
        finally:
            self.took_s = self._now() - began_s

    async def _ask(self) -> Sequence[Card]:
        try:
            return decode(await self._child.ask())
        except ChildError as error:
            raise InventoryError(str(error)) from error


def decode(reply: bytes) -> Sequence[Card]:
    """The child's answer as cards; raises InventoryError for anything else."""
    try:
        return tuple(
            Card(
                c["uuid"],
                c["minor"],
                c["memory_bytes"],
                c.get("numa"),
                c.get("root", ""),
                c.get("link", ""),
                c.get("problem", ""),
            )
            for c in json.loads(reply)
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InventoryError(f"unreadable answer: {error!r}") from error
