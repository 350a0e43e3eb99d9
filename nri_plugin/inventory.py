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
from itertools import combinations
from typing import Any, Final

from contract.log_lines import Line
from nri_plugin import board
from nri_plugin.child import Child
from nri_plugin.errors import ChildError, InventoryError
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
        self._seen: Sequence[Card] = ()
        self._asked_at: float | None = None
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
        try:
            seen = await self._ask()
        except InventoryError as error:
            self._problem = str(error)
            _LOG.error(Line("inventory failed", error=error, cards=len(self._cards)))
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


def ask_nvml() -> Sequence[Mapping[str, Any]]:
    """Every card that NVML names. One that does not even tell its name is said on stderr."""
    import pynvml

    pynvml.nvmlInit()
    try:
        found, handles = [], []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                found.append(_card(handle))
                handles.append(handle)
            except pynvml.NVMLError as error:
                sys.stderr.write(f"card {index}: {error}\n")
        linked = [
            (one, other)
            for one, other in combinations(range(len(handles)), 2)
            if _by_nvlink(handles[one], handles[other])
        ]
        for index, link in enumerate(board.links(len(handles), linked)):
            found[index]["link"] = link
        return found
    finally:
        pynvml.nvmlShutdown()


def _card(handle: object) -> dict[str, Any]:
    import pynvml

    card: dict[str, Any] = {
        "uuid": pynvml.nvmlDeviceGetUUID(handle),
        "minor": pynvml.nvmlDeviceGetMinorNumber(handle),
        "memory_bytes": 0,
    }
    try:
        card["memory_bytes"] = pynvml.nvmlDeviceGetMemoryInfo(handle).total
    except pynvml.NVMLError as error:
        card["problem"] = str(error)
    try:
        place = board.place(pynvml.nvmlDeviceGetPciInfo(handle).busId)
    except pynvml.NVMLError:  # a card in trouble may not say where it is
        place = board.NOWHERE
    return {**card, "numa": place.numa, "root": place.root}


def _by_nvlink(one: object, other: object) -> bool:
    import pynvml

    try:
        status = pynvml.nvmlDeviceGetP2PStatus(one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    except pynvml.NVMLError:  # older drivers and small cards do not know the question
        return False
    return bool(status == pynvml.NVML_P2P_STATUS_OK)


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
