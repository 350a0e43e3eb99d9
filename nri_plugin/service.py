"""The node agent at work: answers NRI's requests with what the policy decides.

What is known of the containers is in tenants.py, and of the host in node.py. The event loop never
waits for a file, a driver or a tenant; that work is done in threads and a child, under deadlines,
and where it is late the container is refused, not let through.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from contract import names
from nri_plugin import connection, places, policy, rootfs, translate, verdict
from nri_plugin.contexts import Contexts
from nri_plugin.errors import FilesError, Reason, Refusal, Refused, refuse
from nri_plugin.files import RunDirectory
from nri_plugin.inventory import Inventory
from nri_plugin.logs import Line, printable
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.metrics import Metrics
from nri_plugin.model import Adjustment, Container, Mount, Pod, Untouched
from nri_plugin.node import Look, Node
from nri_plugin.proofs import Proofs, Started
from nri_plugin.protocol.events import EventMask
from nri_plugin.settings import Settings
from nri_plugin.store import Store
from nri_plugin.tenants import Tenants
from nri_plugin.threads import Crew, Worker

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

_AHEAD_AFTER_S: Final = 0.02
"""When files are made ahead of the next container: this one's answer is on its way by then."""
_LOOKS_AT_ONCE: Final = 8
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
        self._kept = rootfs.Kept(settings.run_dir, settings.store_dir)
        self._inventory = inventory
        self._contexts = contexts
        self._files = files
        self._worker = Worker("files")
        self.node = Node(settings, inventory, store, self._worker)
        self._looks = Crew("look", _LOOKS_AT_ONCE)
        self._tenants = Tenants(settings, files, self._worker, self._metrics)
        self._proofs = Proofs(
            settings.containerd_state, self._kept, self._metrics, settings.work_deadline_s
        )

    def close(self) -> None:
        """Begin nothing more."""
        self._tenants.sweeper.stop()
        self._proofs.stop()

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
                self._proofs.begin(
                    Started(one.pod, one.name, one.id, self._standing(told, one.key))
                )
        _LOG.info(Line("synchronized", containers=len(containers)))
        self._make_ahead()

    async def create_container(
        self, pod: nri.PodSandbox, container: nri.Container
    ) -> nri.ContainerAdjustment | None:
        return await _for_people(pod, container, self._create(pod, container))

    async def start_container(self, pod: nri.PodSandbox, container: nri.Container) -> None:
        await _for_people(pod, container, self._start(pod, container))

    async def stop_container(self, pod: nri.PodSandbox, container: nri.Container) -> None:
        """It holds nothing of a card any more; what it has mounted stays until it is removed."""
        self._tenants.ended(container.id)

    async def remove_container(self, pod: nri.PodSandbox, container: nri.Container) -> None:
        await self._tenants.removed(container.id, translate.key_of(container, self._run_dir))

    async def validate(self, request: nri.ValidateContainerAdjustmentRequest) -> None:
        await _for_people(request.pod, request.container, self._validate(request))

    async def _create(
        self, pod_message: nri.PodSandbox, container_message: nri.Container
    ) -> nri.ContainerAdjustment | None:
        pod = translate.pod(pod_message)
        if not policy.wants_card(pod):
            return None
        container = translate.container(container_message)
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
        specs, paths = await self._in_time("read the CDI specs", self.node.look_at_host())
        decision = policy.decide(pod, container, self._inventory.cards, specs, paths, rules)
        if isinstance(decision, Refusal) and decision.reason in _INVENTORY_MAY_TELL:
            await self._in_time("ask the driver for its cards", self._refreshed())
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

        def prepare() -> bool:
            if seen is not None and self.node.look_now() != seen:
                return False
            self._files.prepare(key, wanted.shares, wanted.shared, known)
            return True

        try:
            made = await self._in_time("make the container's files", self._work(prepare))
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
        if key is None:
            without = answer is not None and answer.key is None
            if not without and self._gets_card(pod, container.name):
                raise Refused(refuse(Reason.NOT_ADJUSTED))
            if policy.wants_card(pod):
                await self._in_time("look at the container", self._look_beside(container.id))
            return
        standing = self._standing(container, key)
        if standing is None:
            raise Refused(refuse(Reason.NOT_ADJUSTED))
        found = await self._in_time("look at the container", self._look(container.id, standing))
        await self._add_preloads(key, found.preloads)
        if found.out_of_reach:
            if self._settings.refuse_unenforceable:
                raise Refused(refuse(Reason.LIMIT_NOT_ENFORCEABLE, problem=found.out_of_reach))
            self._metrics.not_enforceable.inc()
            _LOG.warning(
                Line(
                    names.EVENT_LIMIT_NOT_ENFORCEABLE,
                    namespace=pod.namespace,
                    pod=pod.name,
                    uid=pod.uid,
                    container=container.name,
                    container_id=container.id,
                    problem=found.out_of_reach,
                )
            )
        self._proofs.begin(Started(pod, container.name, container.id, standing, found.waits_in))

    def _standing(self, container: nri.Container, key: str) -> Sequence[Mount] | None:
        """What must be in place in a container for its limit to hold; None: not all is mounted."""
        directory, store_dir = f"{self._run_dir}/{key}", str(self._settings.store_dir)
        return places.in_place(translate.mounts(container.mounts), directory, store_dir)

    async def _add_preloads(self, key: str, preloads: Mapping[str, Sequence[bytes]]) -> None:
        """The image's own preloaded libraries go behind ours, where the file is nobody else's."""
        for place, entries in preloads.items():
            if key.startswith(policy.POD_KEY_PREFIX):
                what = b", ".join(entries).decode(errors="replace")
                raise Refused(refuse(Reason.IMAGE_PRELOAD_SHARED, place=place, what=what))
        if preloads:
            job = partial(self._files.add_preloads, key, preloads)
            try:
                await self._in_time("write the container's preload file", self._work(job))
            except FilesError as error:
                raise Refused(refuse(Reason.FILES_FAILED, problem=error)) from error

    async def _look(self, container_id: str, mounts: Sequence[Mount]) -> rootfs.Found:
        state, forwarded = self._settings.containerd_state, self._settings.strict
        job = partial(rootfs.examine, state, container_id, mounts, self._kept, forwarded)
        return await self._looks.run(job, self._settings.work_deadline_s)

    async def _look_beside(self, container_id: str) -> None:
        """At one without a share, in a pod of ours: its volumes may show the limits of others."""
        state = self._settings.containerd_state
        job = partial(rootfs.examine_without_share, state, container_id, self._kept)
        await self._looks.run(job, self._settings.work_deadline_s)

    async def _validate(self, request: nri.ValidateContainerAdjustmentRequest) -> None:
        answer = self._tenants.answer_of(request.container.id)
        merged, me = translate.merged(request), self._settings.plugin
        if answer is not None:
            lost = verdict.lost(answer, merged, me)
            if lost is not None:
                raise Refused(refuse(Reason.ADJUSTMENT_LOST, what=lost))
        elif self._gets_card(translate.pod(request.pod), request.container.name):
            raise Refused(refuse(Reason.NOT_ADJUSTED))
        card = verdict.foreign_card(answer, merged, me, self._settings.trusted_plugins)
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

    async def _in_time(self, what: str, work: Awaitable[_T]) -> _T:
        try:
            return await work
        except TimeoutError as error:
            raise Refused(refuse(Reason.TOO_SLOW, what=what)) from error


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


async def _for_people(pod: nri.PodSandbox, container: nri.Container, work: Awaitable[_T]) -> _T:
    """`work`, its refusal put in the words that the pod's author reads in an event."""
    try:
        return await work
    except Refused as refused:
        text = (
            f'gpuslice refuses container "{container.name}" of pod {pod.namespace}/{pod.name}:'
            f" {refused}"
        )
        reason = refused.refusal.reason.name
        raise connection.Refused(printable(text)[:_MAX_TEXT_CHARS], reason) from refused
