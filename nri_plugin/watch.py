"""Looks at the node every few seconds, beside the requests, and repairs what it can.

Without it a driver that comes late, a library that is put in place later or a CDI spec that is
missing would be noticed only when a container is refused for it. Fills in readiness.py. Runs on
the event loop; everything that may block goes through the service's worker and children.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from nri_plugin.logs import Line
from nri_plugin.metrics import Metrics
from nri_plugin.model import Card, Paths, Specs
from nri_plugin.readiness import BEAT_S, Readiness

_LOG: Final = logging.getLogger(__name__)

LOOK_EVERY_BEATS: Final = 5


class Node(Protocol):
    """What the watch asks; the service is it."""

    @property
    def cards(self) -> Sequence[Card]: ...
    @property
    def cards_problem(self) -> str | None: ...
    @property
    def containers_with_grant(self) -> int: ...
    async def look_at_host(self) -> tuple[Specs, Paths]:
        """TimeoutError where it takes too long."""

    async def ask_for_cards(self) -> None: ...


async def watch(node: Node, readiness: Readiness, metrics: Metrics) -> None:
    """Until cancelled. Says in the log when the agent becomes ready, and when it ceases to be."""
    beats = 0
    looking: asyncio.Task[Sequence[str]] | None = None
    said: Sequence[str] | None = None
    try:
        while True:
            readiness.beat()
            metrics.with_grant.set(node.containers_with_grant)
            if looking is not None and looking.done():
                readiness.node, looking = looking.result(), None
            if looking is None and beats % LOOK_EVERY_BEATS == 0:
                looking = asyncio.create_task(look(node), name="look at the node")
            metrics.cards.set(len(node.cards))
            problems = readiness.problems
            metrics.ready.set(not problems)
            if problems != said:
                _say(problems)
                said = problems
            beats += 1
            await asyncio.sleep(BEAT_S)
    finally:
        if looking is not None:
            looking.cancel()


async def look(node: Node) -> Sequence[str]:
    """What the node lacks, in words."""
    if node.cards_problem is not None or not node.cards:
        await node.ask_for_cards()
    if node.cards_problem is not None:
        return [f"this node's cards are not known: {node.cards_problem}"]
    if not node.cards:
        return ["the driver shows no card on this node"]
    try:
        specs, paths = await node.look_at_host()
    except TimeoutError:
        return ["this node's files (library, CDI specs) could not be read in time"]
    return lacks(node.cards, specs, paths)


def lacks(cards: Sequence[Card], specs: Specs, paths: Paths) -> Sequence[str]:
    """Pure: library and CDI devices of these cards."""
    found = []
    if paths.library is None:
        found.append(f"the library is missing: {paths.library_problem}")
    unread = f" (unreadable: {'; '.join(specs.problems)})" if specs.problems else ""
    for card in cards:
        device = specs.devices.get(card.uuid)
        if device is None:
            found.append(f"card {card.uuid} has no CDI device{unread}")
        elif device.problem is not None:
            found.append(f"CDI device of card {card.uuid} in {device.file}: {device.problem}")
    return found


def _say(problems: Sequence[str]) -> None:
    if problems:
        _LOG.warning(Line("not ready", why="; ".join(problems)))
    else:
        _LOG.info(Line("ready"))
