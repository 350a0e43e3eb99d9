"""The cards of this node, as NVML tells them: asked in a child process, under a deadline.

Run as `python -m nri_plugin.inventory`, this module is that child: it prints one JSON list.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from nri_plugin.child import Child
from nri_plugin.errors import ChildError, InventoryError
from nri_plugin.logs import Line
from nri_plugin.model import Card

_LOG: Final = logging.getLogger(__name__)


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
        command: Sequence[str] = (sys.executable, "-m", "nri_plugin.inventory"),
    ) -> None:
        self._child = Child(command, environment, deadline_s=deadline_s, whom="NVML")
        self._min_interval_s = min_interval_s
        self._now = now
        self._cards: Sequence[Card] = ()
        self._asked_at: float | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._problem: str | None = "the cards have not been asked for yet"

    @property
    def cards(self) -> Sequence[Card]:
        """What the last successful look found."""
        return self._cards

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
        try:
            self._cards = await self._ask()
        except InventoryError as error:
            self._problem = str(error)
            _LOG.error(Line("inventory failed", error=error, cards=len(self._cards)))
        else:
            self._problem = None
            uuids = ",".join(card.uuid for card in self._cards)
            _LOG.info(Line("inventory", cards=len(self._cards), uuids=uuids))

    async def _ask(self) -> Sequence[Card]:
        try:
            return decode(await self._child.ask())
        except ChildError as error:
            raise InventoryError(str(error)) from error


def decode(reply: bytes) -> Sequence[Card]:
    """The child's answer as cards; raises InventoryError for anything else."""
    try:
        cards = tuple(Card(c["uuid"], c["minor"], c["memory_bytes"]) for c in json.loads(reply))
    except (ValueError, TypeError, KeyError) as error:
        raise InventoryError(f"unreadable answer: {error!r}") from error
    return cards


def ask_nvml() -> Sequence[Mapping[str, Any]]:
    """Every card that NVML lets us see. A card in trouble is left out, and said so on stderr."""
    import pynvml

    pynvml.nvmlInit()
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                card = {
                    "uuid": pynvml.nvmlDeviceGetUUID(handle),
                    "minor": pynvml.nvmlDeviceGetMinorNumber(handle),
                    "memory_bytes": pynvml.nvmlDeviceGetMemoryInfo(handle).total,
                }
            except pynvml.NVMLError as error:
                sys.stderr.write(f"card {index}: {error}\n")
                continue
            found.append(card)
        return found
    finally:
        pynvml.nvmlShutdown()


def main() -> int:
    """The child's whole work; the last line on stderr says why there is no answer."""
    import pynvml

    try:
        found = ask_nvml()
    except pynvml.NVMLError as error:
        sys.stderr.write(f"NVML: {error}\n")
        return 1
    sys.stdout.write(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
