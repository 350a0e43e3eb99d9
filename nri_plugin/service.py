"""The node agent at work: answers NRI's requests with what the policy decides.

What is known of the containers is in tenants.py, and of the host in node.py; starts.py has the
start. The event loop never waits for a disk, a driver or a tenant; that work is done in threads and
a child, under deadlines, and where it is late the container is refused, not let through. What it
does itself is work in memory alone: decisions, and files on the agent's tmpfs while nobody else
works on them.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from contract import names
from nri_plugin import handler, policy, translate, verdict
from nri_plugin.contexts import Contexts
from nri_plugin.errors import FilesError, Reason, Refusal, Refused, refuse
from nri_plugin.files import RunDirectory
from nri_plugin.handler import Answer
from nri_plugin.inventory import Inventory
from nri_plugin.logs import Line, printable
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.metrics import Metrics
from nri_plugin.model import Adjustment, Container, Pod, Untouched
from nri_plugin.node import Look, Node
from nri_plugin.protocol.events import EventMask
from nri_plugin.settings import Settings
from nri_plugin.starts import Starts
from nri_plugin.store import Store
from nri_plugin.tenants import Tenants
from nri_plugin.threads import Worker, in_time

_LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")

EVENTS: Final = (
    EventMask.CREATE_CONTAINER
    | EventMask.START_CONTAINER
    | EventMask.STOP_CONTAINER
    | EventMask.REMOVE_CONTAINER
    | EventMask.VALIDATE_CONTAINER_ADJUSTMENT
)
"""No more: the failure policy makes every event that we ask for one that we can hold up."""

_INVENTORY_MAY_TELL: Final = frozenset(
    {Reason.CARD_UNKNOWN, Reason.CARD_MISMATCH, Reason.MEMORY_OUT_OF_RANGE}
)
"""Refusals that a look at the cards may turn: a card was replaced, or the driver came late."""

_AHEAD_AFTER_S: Final = 0.005
"""When files are made ahead of the next container: this one is answered and validated by then, and
the worker is idle again before a runtime asks for another."""
_MAX_TEXT_CHARS: Final = 2000
"""Refusals quote what the tenant wrote; events and logs stay readable."""


class Service:
    """The handler of one runtime's requests; outlives connections."""

    def __init__(
        self,
        settings: Settings,
        inventory: Inventory,
        contexts: Contexts,
        files: RunDirectory,
        store: Store,
        metrics: Metrics | None = None,
    ) -> None:
        self._settings = settings
        self._metrics = metrics or Metrics()
        self._run_dir = str(settings.run_dir)
        self._inventory = inventory
        self._contexts = contexts
        self._files = files
        self._worker = Worker("files")
        self.node = Node(settings, inventory, store, self._worker)
        self._tenants = Tenants(settings, files, self._worker, self._metrics)
        self._starts = Starts(settings, files, self._worker, self._metrics)

    def close(self) -> None:
        """Begin nothing more."""
        self._tenants.sweeper.stop()
        self._starts.close()

    async def synchronize(
        self, pods: Sequence[nri.PodSandbox], containers: Sequence[nri.Container]
    ) -> None:
        by_sandbox = {pod.id: translate.pod(pod) for pod in pods}
        running = [
            translate.running(one, by_sandbox.get(one.pod_sandbox_id), self._run_dir)
            for one in containers
        ]
        await self._tenants.take_over(running, self._inventory.cards)
        for told, one in zip(containers, running, strict=True):
            if one.key is not None and told.state == nri.CONTAINER_RUNNING:
                self._starts.running(one.pod, told, one.key)
        _LOG.info(Line("synchronized", containers=len(containers)))
        self._make_ahead()

    async def create_container(
        self, pod: nri.PodSandbox, container: nri.Container
    ) -> nri.ContainerAdjustment | None:
        try:
            return await self._create(pod, container)
        except Refused as refused:
            raise _for_people(pod, container, refused) from refused

    async def start_container(self, pod: nri.PodSandbox, container: nri.Container) -> None:
        try:
            await self._start(pod, container)
        except Refused as refused:
            raise _for_people(pod, container, refused) from refused

    def stop_container(self, pod: nri.PodSandbox, container: nri.Container) -> None:
        """It holds nothing of a card any more; what it has mounted stays until it is removed."""
        self._tenants.ended(container.id)

    async def remove_container(self, pod: nri.PodSandbox, container: nri.Container) -> None:
        await self._tenants.removed(container.id, translate.key_of(container, self._run_dir))

    def validate(self, request: nri.ValidateContainerAdjustmentRequest) -> Answer[None]:
        try:
            merged = self._validate(request)
            if merged is None:
                return None
            asked = verdict.asks_host(merged, self._settings.plugin)
            if asked is None:
                self._check_cards(request, merged, verdict.Host())
                return None
            return self._look_closer(request, merged, asked)
        except Refused as refused:
            raise _for_people(request.pod, request.container, refused) from refused

    async def _create(
        self, pod_message: nri.PodSandbox, container_message: nri.Container
    ) -> nri.ContainerAdjustment | None:
        pod = translate.pod(pod_message)
        if not policy.wants_card(pod):
            return None
        container = translate.container(container_message)
        if container.cdi_names:
            look = self.node.brought(container.cdi_names)
            found = (await in_time("read the CDI specs", look)).cdi_cards
            left = tuple(name for name in container.cdi_names if name in found)
            container = replace(container, cdi_names=left)
        rules = self._settings.rules
        if (seen := self.node.seen) is not None:
            # Nearly always the node is as it was: then the look that says so and the files are one
            # errand of the worker's, and the runtime waits for one only.
            guess = policy.decide(pod, container, self._inventory.cards, *seen, rules)
            if (
                isinstance(guess, Adjustment)
                and guess.key is not None
                and await self._grant(pod, container, guess.key, guess, seen)
            ):
                return translate.adjustment(guess)
        specs, paths = await in_time("read the CDI specs", self.node.look_at_host())
        decision = policy.decide(pod, container, self._inventory.cards, specs, paths, rules)
        if isinstance(decision, Refusal) and decision.reason in _INVENTORY_MAY_TELL:
            await in_time("ask the driver for its cards", self._refreshed())
            if self._inventory.problem is not None:
                raise Refused(refuse(Reason.CARDS_UNKNOWN, problem=self._inventory.problem))
            decision = policy.decide(pod, container, self._inventory.cards, specs, paths, rules)
        match decision:
            case Untouched(given=given):
                if given:
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
                return None
            case Refusal():
                raise Refused(decision)
            case Adjustment():
                if decision.key is not None:
                    await self._grant(pod, container, decision.key, decision)
                else:
                    self._tenants.answered(container.id, decision)
                return translate.adjustment(decision)

    async def _grant(
        self,
        pod: Pod,
        container: Container,
        key: str,
        wanted: Adjustment,
        seen: Look | None = None,
    ) -> bool:
        """Have the container hold its grant; True when it does.

        seen: what `wanted` was decided on; where the node is not that any more, nothing is done.
        """
        self._tenants.answered(container.id, wanted)
        self._tenants.take(pod, container, wanted, key, self._inventory.cards)
        granted = False
        try:
            granted = await self._provide(key, wanted, seen)
        finally:  # cancelled, too: it is answered with an error, or not
            if not granted:
                self._tenants.ended(container.id)
        if granted:
            _say_what_is_cut(pod, container, wanted)
        return granted

    async def _provide(self, key: str, wanted: Adjustment, seen: Look | None) -> bool:
        """The files of the container's grant, made before the runtime has its answer."""
        self._inventory.look(self._settings.inventory_max_age_s)
        self._contexts.look(share.uuid for share in wanted.shares)
        known = dict(self._contexts.sizes)
        make = partial(self._files.prepare, key, wanted.shares, wanted.shared, known)
        if wanted.shared:
            make = partial(make, preloads=_own_preloads(wanted))

        def prepare() -> bool:
            if seen is not None and self.node.look_now() != seen:
                return False
            make()
            return True

        try:
            # Nearly always: to do it here saves the way to the worker's thread and back, which
            # costs more than the work.
            if (
                seen is not None
                and self._worker.idle
                and self.node.is_still(seen)
                and self._files.at_hand(len(wanted.shares))
            ):
                make()
                made = True
            else:
                made = await in_time("make the container's files", self._work(prepare))
        except FilesError as error:
            raise Refused(refuse(Reason.FILES_FAILED, problem=error)) from error
        self._make_ahead()
        return made

    def _make_ahead(self) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(_AHEAD_AFTER_S, self._worker.post, self._files.make_ahead)

    async def _start(self, pod_message: nri.PodSandbox, container: nri.Container) -> None:
        pod = translate.pod(pod_message)
        answer = self._tenants.starts(container.id)
        key = translate.key_of(container, self._run_dir)
        if key is not None:
            await self._starts.with_share(pod, container, key)
            return
        without = answer is not None and answer.key is None
        if not without and self._gets_card(pod, container.name):
            raise Refused(refuse(Reason.NOT_ADJUSTED))
        if policy.wants_card(pod):
            await self._starts.without_share(container.id)

    def _validate(self, request: nri.ValidateContainerAdjustmentRequest) -> verdict.Merged | None:
        """What is left to be judged: whether others bring a card; None: nothing."""
        answer, me = self._tenants.answer_of(request.container.id), self._settings.plugin
        if answer is not None and translate.stands(request, answer, me):
            return None
        merged = translate.merged(request)
        if answer is not None:
            lost = verdict.lost(answer, merged, me)
            if lost is not None:
                raise Refused(refuse(Reason.ADJUSTMENT_LOST, what=lost))
        elif self._gets_card(translate.pod(request.pod), request.container.name):
            raise Refused(refuse(Reason.NOT_ADJUSTED))
        return merged

    async def _look_closer(
        self,
        request: nri.ValidateContainerAdjustmentRequest,
        merged: verdict.Merged,
        cdi_names: Sequence[str],
    ) -> None:
        """Another plugin asks for more than its words say: the host knows what that brings."""
        try:
            host = await in_time("look at what plugins bring", self.node.brought(cdi_names))
            self._check_cards(request, merged, host)
        except Refused as refused:
            raise _for_people(request.pod, request.container, refused) from refused

    def _check_cards(
        self,
        request: nri.ValidateContainerAdjustmentRequest,
        merged: verdict.Merged,
        host: verdict.Host,
    ) -> None:
        answer, settings = self._tenants.answer_of(request.container.id), self._settings
        trusted = settings.trusted_plugins
        card = verdict.foreign_card(answer, merged, settings.plugin, trusted, host)
        if card is not None:
            plugin = card.plugin or "unknown"
            raise Refused(refuse(Reason.CARD_FOREIGN, plugin=plugin, what=card.what))

    def _gets_card(self, pod: Pod, container_name: str) -> bool:
        """Whether the container may only run with an adjustment of ours, or not at all.

        A container of the pod that was granted nothing is adjusted too; but without it, it has no
        card either.
        """
        try:
            claimed = policy.claim(pod, container_name, self._inventory.cards)
        except Refused:
            return True
        return claimed is not None and bool(claimed.shares)

    @property
    def containers_with_grant(self) -> int:
        return len(self._tenants.ledger.holds())

    async def _refreshed(self) -> None:
        async with asyncio.timeout(self._settings.work_deadline_s):
            await self._inventory.refresh()

    async def _work(self, job: Callable[[], _T]) -> _T:
        return await self._worker.run(job, self._settings.work_deadline_s)


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


def _for_people(pod: nri.PodSandbox, container: nri.Container, refused: Refused) -> handler.Refused:
    """The refusal in the words that the pod's author reads in an event."""
    text = (
        f'gpuslice refuses container "{container.name}" of pod {pod.namespace}/{pod.name}:'
        f" {refused}"
    )
    return handler.Refused(printable(text)[:_MAX_TEXT_CHARS], refused.refusal.reason.name)
