"""What is done at CreateContainer: the container gets its share, with its files, or a reason.

Each step runs in the worker or a child, under a deadline. The share is held before the files are
made, and given back where they are not.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from contract import names
from contract.log_lines import Line
from nri_plugin import places, policy, translate
from nri_plugin.bounds import Bounds
from nri_plugin.contexts import Contexts
from nri_plugin.errors import FilesError, Reason, Refusal, Refused, refuse
from nri_plugin.files import RunDirectory
from nri_plugin.inventory import Inventory
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.model import Adjustment, Container, Floor, Pod, Untouched
from nri_plugin.node import Look, Node
from nri_plugin.notices import Notice, Notices
from nri_plugin.settings import Settings
from nri_plugin.tenants import Answered, Tenants
from nri_plugin.threads import Worker, in_time

_LOG: Final = logging.getLogger(__name__)

_INVENTORY_MAY_TELL: Final = frozenset(
    {Reason.CARD_UNKNOWN, Reason.CARD_MISMATCH, Reason.MEMORY_OUT_OF_RANGE}
)
"""Refusals that a look at the cards may turn: a card was replaced, or the driver came late."""


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
        notices: Notices,
    ) -> None:
        self._bounds = bounds
        self._notices = notices
        self._settings = settings
        self._node = node
        self._inventory = inventory
        self._contexts = contexts
        self._tenants = tenants
        self._files = files
        self._worker = worker

    async def create(self, pod: Pod, container: Container) -> nri.CreateContainerResponse | None:
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
        if isinstance(decision, Refusal):
            raise Refused(decision)
        if isinstance(decision, Untouched):
            if decision.given:
                _say_what_is_kept(pod, container, decision.given)
            return None
        if decision.key is not None:
            return await self._share(pod, container, decision, decision.key)
        self._warn(pod, container, decision.warning)
        answer = Answered(decision, translate.reply(decision))
        self._tenants.answered(container.id, answer)
        return answer.sent

    async def _share(
        self, pod: Pod, container: Container, wanted: Adjustment, key: str
    ) -> nri.CreateContainerResponse:
        """Hold the share, then make the container's files; the share is given back where that
        fails, or is cancelled."""
        if self._bounds.ask is not None and self._bounds.unknown(pod):
            await self._bounds.ask(pod)
        answer = Answered(wanted, translate.reply(wanted))
        self._tenants.answered(container.id, answer)
        self._tenants.take(pod, container, wanted, key, self._inventory.cards)
        granted = False
        try:
            work = self._worker.run(
                self._making(wanted, key, container.name), self._settings.work_deadline_s
            )
            await in_time("make the container's files", work)
            granted = True
        except FilesError as error:
            raise Refused(refuse(Reason.FILES_FAILED, problem=error)) from error
        finally:
            if not granted:
                self._tenants.ended(container.id)
        _say_what_is_cut(pod, container, wanted)
        return answer.sent

    def _warn(self, pod: Pod, container: Container, warning: str) -> None:
        if warning:
            text = f'container "{container.name}": {warning}'
            self._notices.add(Notice(pod, container.name, names.EVENT_WITHOUT_GPU, text))

    def _decide(
        self, pod: Pod, container: Container, seen: Look
    ) -> Adjustment | Refusal | Untouched:
        return policy.decide(pod, container, self._inventory.cards, *seen, self._settings.rules)

    def _making(self, wanted: Adjustment, key: str, name: str) -> Callable[[], None]:
        self._inventory.look(self._settings.inventory_max_age_s)
        self._contexts.look(share.uuid for share in wanted.shares)
        settings = self._settings
        sizes = dict(self._contexts.sizes)
        floor = Floor(sizes, settings.code_bytes, settings.managed_free)
        preloads = _own_preloads(wanted) if wanted.shared else ()
        standing = places.in_place(
            wanted.mounts, f"{settings.run_dir}/{key}", str(settings.store_dir)
        )

        def make() -> None:
            self._files.prepare(key, wanted.shares, wanted.shared, floor, preloads)
            if standing is not None:
                self._files.record(key, name if wanted.shared else "", standing)

        return make

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
