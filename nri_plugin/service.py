"""The node agent at work: answers NRI's requests with what the policy decides.

Holds what is known about running containers, and nothing that the runtime could not tell it again:
Synchronize rebuilds it all after any restart, of ours or containerd's. The event loop never waits
for a file, a driver or a tenant; that work is done in threads and a child, under deadlines, and
where it is late the container is refused, not let through.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from contract import names
from nri_plugin import cdi, connection, injection, policy, rootfs, translate
from nri_plugin.contexts import Contexts
from nri_plugin.endpoint import Endpoint
from nri_plugin.errors import FilesError, Reason, Refusal, Refused, StoreError, refuse
from nri_plugin.files import RunDirectory
from nri_plugin.inventory import Inventory
from nri_plugin.logs import Line, printable
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.metrics import Metrics
from nri_plugin.model import Adjustment, Card, Container, Mount, Paths, Pod, Specs, Untouched
from nri_plugin.observer import Observer
from nri_plugin.protocol.errors import NriError
from nri_plugin.protocol.events import EventMask, RuntimeInfo
from nri_plugin.readiness import Readiness
from nri_plugin.settings import Settings
from nri_plugin.store import Store
from nri_plugin.threads import Crew, Worker
from nri_plugin.watch import watch

_LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")

EVENTS: Final = (
    EventMask.CREATE_CONTAINER
    | EventMask.START_CONTAINER
    | EventMask.REMOVE_CONTAINER
    | EventMask.VALIDATE_CONTAINER_ADJUSTMENT
)
"""No more: the failure policy makes every event that we ask for one that we can hold up."""

_INVENTORY_MAY_TELL: Final = frozenset(
    {Reason.CARD_UNKNOWN, Reason.CARD_MISMATCH, Reason.MEMORY_OUT_OF_RANGE}
)
"""Refusals that a look at the cards may turn: a card was replaced, or the driver came late."""

_PROTECTIVE: Final = frozenset(
    {
        names.CONTAINER_DIR,
        names.CONTAINER_LIBRARY,
        names.CONTAINER_PRELOAD,
        f"{names.CONTAINER_DIR}/{names.FILE_REGION}",
    }
)
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
        self._inventory = inventory
        self._contexts = contexts
        self._files = files
        self._store = store
        self._worker = Worker("files")
        self._looks = Crew("look", _LOOKS_AT_ONCE)
        self._users: dict[str, set[str]] = {}
        self._answers: dict[str, Adjustment] = {}

    async def synchronize(
        self, pods: Sequence[nri.PodSandbox], containers: Sequence[nri.Container]
    ) -> None:
        # What was answered just now may be in the making, and not listed yet: its files stay once.
        self._users = {}
        for container_id, answer in self._answers.items():
            if answer.key is not None:
                self._users.setdefault(answer.key, set()).add(container_id)
        self._answers.clear()
        unprotected = 0
        by_sandbox = {pod.id: translate.pod(pod) for pod in pods}
        for container in containers:
            key = translate.key_of(container, self._run_dir)
            pod = by_sandbox.get(container.pod_sandbox_id)
            if key is not None:
                self._users.setdefault(key, set()).add(container.id)
            elif pod is not None and self._gets_card(pod, container.name):
                unprotected += 1
                _LOG.error(
                    Line(
                        "container without its card: it was made while this agent was away;"
                        " delete the pod to have it made anew",
                        namespace=pod.namespace,
                        pod=pod.name,
                        uid=pod.uid,
                        container=container.name,
                    )
                )
        self._metrics.unprotected.set(unprotected)
        try:
            removed = await self._work(partial(self._files.sweep, frozenset(self._users)))
        except TimeoutError:
            _LOG.warning(Line("sweep", outcome="late"))
        else:
            _LOG.info(Line("synchronized", containers=len(containers), orphans=len(removed)))

    async def create_container(
        self, pod: nri.PodSandbox, container: nri.Container
    ) -> nri.ContainerAdjustment | None:
        return await _for_people(pod, container, self._create(pod, container))

    async def start_container(self, pod: nri.PodSandbox, container: nri.Container) -> None:
        await _for_people(pod, container, self._start(pod, container))

    async def stop_container(self, pod: nri.PodSandbox, container: nri.Container) -> None:
        """Nothing: what the container has mounted stays until it is removed."""

    async def remove_container(self, pod: nri.PodSandbox, container: nri.Container) -> None:
        answer = self._answers.pop(container.id, None)
        key = translate.key_of(container, self._run_dir) or (answer and answer.key)
        if not key:
            return
        users = self._users.get(key, set())
        users.discard(container.id)
        if users:
            return
        self._users.pop(key, None)
        try:
            await self._work(partial(self._files.remove, key))
        except (FilesError, TimeoutError) as error:
            _LOG.warning(Line("files stay until the next sweep", key=key, error=repr(error)))

    async def validate(self, request: nri.ValidateContainerAdjustmentRequest) -> None:
        await _for_people(request.pod, request.container, self._validate(request))

    async def _create(
        self, pod_message: nri.PodSandbox, container_message: nri.Container
    ) -> nri.ContainerAdjustment | None:
        pod = translate.pod(pod_message)
        if not policy.wants_card(pod):
            return None
        container = translate.container(container_message)
        specs, paths = await self._in_time("read the CDI specs", self.look_at_host())
        decision = policy.decide(pod, container, self._inventory.cards, specs, paths)
        if isinstance(decision, Refusal) and decision.reason in _INVENTORY_MAY_TELL:
            await self._in_time("ask the driver for its cards", self._refreshed())
            if self._inventory.problem is not None:
                raise Refused(refuse(Reason.CARDS_UNKNOWN, problem=self._inventory.problem))
            decision = policy.decide(pod, container, self._inventory.cards, specs, paths)
        match decision:
            case Untouched():
                return None
            case Refusal():
                raise Refused(decision)
            case Adjustment():
                self._answers[container.id] = decision
                if decision.key is not None:
                    await self._provide(container.id, decision.key, decision)
                return translate.adjustment(decision)

    async def _provide(self, container_id: str, key: str, wanted: Adjustment) -> None:
        """The files of the container's grant, made before the runtime has its answer."""
        # A user from before the files are there until it is removed, whatever comes of it: work
        # that we stop waiting for goes on, and the removal comes behind it.
        self._users.setdefault(key, set()).add(container_id)
        self._contexts.look(share.uuid for share in wanted.shares)
        known = dict(self._contexts.sizes)
        job = partial(self._files.prepare, key, wanted.shares, wanted.shared, known)
        try:
            await self._in_time("make the container's files", self._work(job))
        except FilesError as error:
            raise Refused(refuse(Reason.FILES_FAILED, problem=error)) from error

    async def _start(self, pod_message: nri.PodSandbox, container: nri.Container) -> None:
        pod = translate.pod(pod_message)
        answer = self._answers.pop(container.id, None)
        if translate.key_of(container, self._run_dir) is None:
            without = answer is not None and answer.key is None
            if not without and self._gets_card(pod, container.name):
                raise Refused(refuse(Reason.NOT_ADJUSTED))
            return
        mounts = [m for m in translate.mounts(container.mounts) if m.destination in _PROTECTIVE]
        if {mount.destination for mount in mounts} != _PROTECTIVE:
            raise Refused(refuse(Reason.NOT_ADJUSTED))
        await self._in_time("look at the container", self._look(container.id, mounts))

    async def _look(self, container_id: str, mounts: Sequence[Mount]) -> None:
        job = partial(rootfs.examine, self._settings.containerd_state, container_id, mounts)
        await self._looks.run(job, self._settings.work_deadline_s)

    async def _validate(self, request: nri.ValidateContainerAdjustmentRequest) -> None:
        answer = self._answers.get(request.container.id)
        if answer is None:
            if self._gets_card(translate.pod(request.pod), request.container.name):
                raise Refused(refuse(Reason.NOT_ADJUSTED))
            return
        adjust = request.adjust
        lost = injection.missing_from(
            answer, translate.env(adjust.env), translate.mounts(adjust.mounts)
        )
        if lost is not None:
            raise Refused(refuse(Reason.ADJUSTMENT_LOST, what=lost))

    def _gets_card(self, pod: Pod, container_name: str) -> bool:
        """Whether the container may only run with an adjustment of ours, or not at all.

        A container of the pod that was granted nothing is adjusted too; but without it, it has no
        card either.
        """
        if not policy.wants_card(pod):
            return False
        nowhere = Paths(self._run_dir, None, "not looked for")
        decision = policy.decide(
            pod, Container("unnamed", container_name), self._inventory.cards, Specs(), nowhere
        )
        no_card = isinstance(decision, Adjustment) and decision.key is None
        return not (no_card or isinstance(decision, Untouched))

    @property
    def cards(self) -> Sequence[Card]:
        return self._inventory.cards

    @property
    def cards_problem(self) -> str | None:
        return self._inventory.problem

    @property
    def containers_with_grant(self) -> int:
        return sum(map(len, self._users.values()))

    async def ask_for_cards(self) -> None:
        await self._inventory.refresh()

    async def look_at_host(self) -> tuple[Specs, Paths]:
        return await self._work(self._look_at_host)

    def _look_at_host(self) -> tuple[Specs, Paths]:
        """CDI specs and library as they are now; runs in the worker."""
        specs = cdi.load(self._settings.cdi_dirs)
        try:
            forwarders = self._store.forwarders() if self._settings.strict else {}
            return specs, Paths(
                self._run_dir,
                str(self._store.current()),
                forwarders={soname: str(path) for soname, path in forwarders.items()},
            )
        except StoreError as error:
            return specs, Paths(self._run_dir, None, str(error))

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


async def run(settings: Settings, announce: Callable[[str], None]) -> None:
    """Serve until cancelled. `announce` is told each time containers are adjusted from now on."""
    metrics, readiness = Metrics(), Readiness(time.monotonic)
    inventory = Inventory(
        settings.environment,
        deadline_s=settings.inventory_deadline_s,
        min_interval_s=settings.inventory_min_interval_s,
        now=time.monotonic,
    )
    contexts = Contexts(
        settings.environment,
        deadline_s=settings.context_deadline_s,
        min_interval_s=settings.context_min_interval_s,
        now=time.monotonic,
    )
    files = RunDirectory(settings.run_dir, lambda: random.SystemRandom().randrange(1, 1 << 64))
    store = Store(settings.store_dir, settings.library)
    service = Service(settings, inventory, contexts, files, store, metrics)
    endpoint = settings.http and Endpoint(settings.http, readiness, metrics)
    if endpoint:
        endpoint.start()
    watching = asyncio.create_task(watch(service, readiness, metrics), name="watch")
    try:
        await inventory.refresh()
        # The first containers after a start, often all of the node's, shall have the figure, too.
        contexts.look(card.uuid for card in inventory.cards)
        await contexts.settled()
        await _serve_for_ever(settings, service, Observer(metrics, readiness), announce)
    finally:
        watching.cancel()
        if endpoint:
            endpoint.close()
        await contexts.close()
        await inventory.close()


async def _serve_for_ever(
    settings: Settings, service: Service, observer: Observer, announce: Callable[[str], None]
) -> None:
    pause_s, place = settings.first_retry_s, settings.nri_socket

    def ready(runtime: RuntimeInfo) -> None:
        nonlocal pause_s
        pause_s = settings.first_retry_s
        observer.ready(runtime)
        version = f"NRI {runtime.nri_version}" if runtime.nri_version else "NRI before 0.12"
        announce(f"ready: registered with {runtime.name} {runtime.version} ({version})")

    while True:
        try:
            reader, writer = await asyncio.open_unix_connection(place)
            observer.connected(str(place))
            await connection.serve(
                reader,
                writer,
                service,
                name=names.PLUGIN_NAME,
                index=settings.index,
                wanted_events=EVENTS,
                on_ready=ready,
                on_decision=observer.decided,
            )
            observer.lost("ended", f"the container runtime ended the session at {place}")
        except (FileNotFoundError, ConnectionRefusedError) as error:
            observer.lost(
                "absent",
                f"nobody listens at {place} ({error.strerror}):"
                " is containerd running, with NRI on?",
            )
        except (OSError, NriError) as error:
            observer.lost("failed", f"no session at {place}: {error}")
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
        pause_s = min(pause_s * 2, settings.last_retry_s)
