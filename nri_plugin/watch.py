"""Looks at the node every few seconds, beside the requests, and repairs what it can.

Without it a driver that comes late, a library that is put in place later or a CDI spec that is
missing would be noticed only when a container is refused for it. Fills in readiness.py. Runs on
the event loop; everything that may block goes through the node's worker and children.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from contract.log_lines import Line
from nri_plugin.metrics import Metrics
from nri_plugin.model import Card, Paths, Specs
from nri_plugin.node import Node
from nri_plugin.readiness import BEAT_S, Readiness

_LOG: Final = logging.getLogger(__name__)

LOOK_EVERY_BEATS: Final = 5


async def watch(
    node: Node, count_grants: Callable[[], int], readiness: Readiness, metrics: Metrics
) -> None:
    """Until cancelled. Says in the log when the agent becomes ready, and when it ceases to be."""
    beats, asked_by = 0, node.runtime
    looking: asyncio.Task[Sequence[str]] | None = None
    said: Sequence[str] | None = None
    try:
        while True:
            readiness.beat()
            metrics.with_grant.set(count_grants())
            if looking is not None and looking.done():
                readiness.node, looking = looking.result(), None
            due = beats % LOOK_EVERY_BEATS == 0 or asked_by is not node.runtime
            if looking is None and due:
                asked_by = node.runtime
                looking = asyncio.create_task(look(node), name="look at the node")
            metrics.cards.set(len(node.cards))
            problems = readiness.problems
            metrics.ready.set(not problems)
            if problems != said:
                _say(problems)
                said = problems
            beats += 1
            await asyncio.sleep(BEAT_S)
    except Exception:
        _LOG.exception(Line("the watch ended: /healthz fails from now on"))
        raise
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
        found = [specs.devices.get(card.uuid) for card in node.cards]
        # Somebody may have described the card since we did, in the same directory: then neither
        # description counts, and ours gives way.
        if any(device and device.problem for device in found) and await node.discard_specs():
            specs, paths = await node.look_at_host()
        missing = [card.uuid for card in node.cards if card.uuid not in specs.devices]
        if missing and await node.generate_specs(missing):
            specs, paths = await node.look_at_host()
    except TimeoutError:
        return ["this node's files (library, CDI specs) could not be read or written in time"]
    except OSError as error:
        return [f"no CDI spec can be written: {error}"]
    return lacks(node.cards, specs, paths, node.generator_problem)


def lacks(
    cards: Sequence[Card], specs: Specs, paths: Paths, generator_problem: str | None = None
) -> Sequence[str]:
    """Pure: library and CDI devices of these cards."""
    found = []
    if paths.bringing.by_name_problem is not None:
        found.append(f"CDI devices are asked for by name, but {paths.bringing.by_name_problem}")
    if paths.library is None:
        found.append(f"the library is missing: {paths.library_problem}")
    hints = [f"unreadable: {problem}" for problem in specs.problems]
    hints += [f"none was generated: {generator_problem}"] if generator_problem else []
    hint = f" ({'; '.join(hints)})" if hints else ""
    for card in cards:
        device = specs.devices.get(card.uuid)
        if device is None:
            found.append(f"card {card.uuid} has no CDI device{hint}")
        elif device.problem is not None:
            found.append(f"CDI device of card {card.uuid} in {device.file}: {device.problem}")
    return found


def _say(problems: Sequence[str]) -> None:
    if problems:
        _LOG.warning(Line("not ready", why="; ".join(problems)))
    else:
        _LOG.info(Line("ready"))
