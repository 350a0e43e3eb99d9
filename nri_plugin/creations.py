"""What is done at CreateContainer: the container gets its share, with its files, or a reason.

At once, without a task or a thread, where all is at hand: nobody has touched the node since it was
looked at, the worker is idle, and the files are made by work in memory alone. That is nearly
always so. Else step by step, each step in the worker or a child, under a deadline. Either way the
share is held before the files are made, and given back where they are not.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from contract import names
from contract.log_lines import Line
from nri_plugin import policy, translate
from nri_plugin.bounds import Bounds
from nri_plugin.contexts import Contexts
from nri_plugin.errors import FilesError, Reason, Refusal, Refused, refuse
from nri_plugin.files import RunDirectory
from nri_plugin.inventory import Inventory
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.model import Adjustment, Container, Floor, Pod, Untouched
from nri_plugin.node import Look, Node
from nri_plugin.settings import Settings
from nri_plugin.tenants import Answered, Tenants
from nri_plugin.threads import Worker, in_time

_LOG: Final = logging.getLogger(__name__)

_INVENTORY_MAY_TELL: Final = frozenset(
    {Reason.CARD_UNKNOWN, Reason.CARD_MISMATCH, Reason.MEMORY_OUT_OF_RANGE}
)
"""Refusals that a look at the cards may turn: a card was replaced, or the driver came late."""

_AHEAD_AFTER_S: Final = 0.005
"""When files are made ahead of the next container: this one is answered and validated by then, and
the worker is idle again before a runtime asks for another."""


class Creations:
    """worker: the one that does all work on `files`. All methods raise Refused."""

    def __init__(
        self,
        settings: Settings,
        node: Node,
        inventory: Inventory,
        contexts: Contexts,
        tenants: Tenants,
        files: RunDirectory,
        worker: Worker,
        bounds: Bounds,
    ) -> None:
        self._bounds = bounds
        self._settings = settings
        self._node = node
        self._inventory = inventory
        self._contexts = contexts
        self._tenants = tenants
        self._files = files
        self._worker = worker

    def at_once(self, pod: Pod, container: Container) -> nri.CreateContainerResponse | None:
        """The container's adjustment; None: ask `later`, something has to be waited for or said."""
        seen = self._node.seen
        if seen is None or not self._worker.idle or not self._node.is_still(seen):
            return None
        if container.cdi_names:  # what they bring is said by files
            return None
        decision = self._decide(pod, container, seen)
        if not isinstance(decision, Adjustment):
            return None
        if decision.key is not None and self._bounds.unknown(pod):  # a question to the API server
            return None
        if decision.key is not None and not self._files.at_hand(len(decision.shares)):
            return None
        answer = Answered(decision, translate.reply(decision))
        if decision.key is None:
            self._tenants.answered(container.id, answer)
        else:
            with self._holding(pod, container, answer, decision.key) as make_files:
                make_files()
        return answer.sent

    async def later(self, pod: Pod, container: Container) -> nri.CreateContainerResponse | None:
        """The container's adjustment; None: it needs none."""
        if container.cdi_names:
            look = self._node.brought(container.cdi_names)
            found = (await in_time("read the CDI specs", look)).cdi_cards
            left = tuple(name for name in container.cdi_names if name in found)
            container = replace(container, cdi_names=left)
        seen = await in_time("read the CDI specs", self._node.look_at_host())
        decision = self._decide(pod, container, seen)
        if isinstance(decision, Refusal) and decision.reason in _INVENTORY_MAY_TELL:
            await in_time("ask the driver for its cards", self._refreshed())
            if self._inventory.problem is not None:
                raise Refused(refuse(Reason.CARDS_UNKNOWN, problem=self._inventory.problem))
            decision = self._decide(pod, container, seen)
        match decision:
            case Untouched(given=given):
                if given:
                    _say_what_is_kept(pod, container, given)
                return None
            case Refusal():
                raise Refused(decision)
            case Adjustment(key=key):
                answer = Answered(decision, translate.reply(decision))
        if key is None:
            self._tenants.answered(container.id, answer)
        else:
            if self._bounds.ask is not None and self._bounds.unknown(pod):
                await self._bounds.ask(pod)
            with self._holding(pod, container, answer, key) as make_files:
                work = self._worker.run(make_files, self._settings.work_deadline_s)
                await in_time("make the container's files", work)
        return answer.sent

    def make_ahead(self) -> None:
        """Have made, in a while, what the next containers' files have in common."""
        loop = asyncio.get_running_loop()
        loop.call_later(_AHEAD_AFTER_S, self._worker.post, self._files.make_ahead)

    def _decide(
        self, pod: Pod, container: Container, seen: Look
    ) -> Adjustment | Refusal | Untouched:
        return policy.decide(pod, container, self._inventory.cards, *seen, self._settings.rules)

    @contextmanager
    def _holding(
        self, pod: Pod, container: Container, answer: Answered, key: str
    ) -> Iterator[Callable[[], None]]:
        """The container holds its share; yields what makes its files, in the worker's turn."""
        wanted = answer.wanted
        self._tenants.answered(container.id, answer)
        self._tenants.take(pod, container, wanted, key, self._inventory.cards)
        granted = False
        try:
            yield self._making(wanted, key)
            granted = True
        except FilesError as error:
            raise Refused(refuse(Reason.FILES_FAILED, problem=error)) from error
        finally:  # cancelled, too: it is answered with an error, or not
            if not granted:
                self._tenants.ended(container.id)
        _say_what_is_cut(pod, container, wanted)
        self.make_ahead()

    def _making(self, wanted: Adjustment, key: str) -> Callable[[], None]:
        self._inventory.look(self._settings.inventory_max_age_s)
        self._contexts.look(share.uuid for share in wanted.shares)
        settings = self._settings
        sizes = dict(self._contexts.sizes)
        floor = Floor(sizes, settings.code_bytes, settings.managed_free)
        preloads = _own_preloads(wanted) if wanted.shared else ()
        return partial(self._files.prepare, key, wanted.shares, wanted.shared, floor, preloads)

    async def _refreshed(self) -> None:
        async with asyncio.timeout(self._settings.work_deadline_s):
            await self._inventory.refresh()


def _own_preloads(wanted: Adjustment) -> Sequence[str]:
    """The preload lists of a container that shares its grant, which are its own."""
    return [
        posixpath.basename(mount.source)
        for mount in wanted.mounts
        if mount.destination in names.CONTAINER_PRELOADS
    ]


def _say_what_is_cut(pod: Pod, container: Container, decision: Adjustment) -> None:
    if decision.cut:
        _LOG.info(
            Line(
                "driver capabilities cut",
                namespace=pod.namespace,
                pod=pod.name,
                uid=pod.uid,
                container=container.name,
                cut=",".join(decision.cut),
            )
        )


def _say_what_is_kept(pod: Pod, container: Container, given: str) -> None:
    _LOG.warning(
        Line(
            "container without a grant keeps the card of another device plugin",
            namespace=pod.namespace,
            pod=pod.name,
            uid=pod.uid,
            container=container.name,
            container_id=container.id,
            given=given,
        )
    )
