"""Main loop of the node agent: creates its parts and keeps the agent registered until it must stop.

The agent waits until no other agent serves the node. Then it connects to the runtime, serves, and
reconnects with exponential backoff and jitter. Before it stops, it answers the open requests.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpuslice.contract import names
from gpuslice.kube.log_lines import Line
from nri_plugin.claims.store import store_of
from nri_plugin.containers.parts import Parts
from nri_plugin.endpoint import Endpoint
from nri_plugin.gpu.arbiter_process import ArbiterProcess
from nri_plugin.gpu.audit import Audit
from nri_plugin.gpu.contexts import Contexts
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.gpu.measuring import Measuring
from nri_plugin.gpu.record import Record
from nri_plugin.host import bundle
from nri_plugin.host.descriptors import version
from nri_plugin.host.files import RunDirectory
from nri_plugin.host.lock import Lock
from nri_plugin.host.node import Node
from nri_plugin.host.store import Store
from nri_plugin.host.watch import SILENT_S, inspect, report, watch
from nri_plugin.nri import connection
from nri_plugin.nri.observer import Observer
from nri_plugin.nri.service import Service
from nri_plugin.policy.ledger import Ledger
from nri_plugin.policy.model import Gpu
from nri_plugin.policy.notices import Notices
from nri_plugin.protocol.errors import NriError
from nri_plugin.protocol.session_events import RuntimeInfo
from nri_plugin.readiness import Readiness
from nri_plugin.settings import Settings
from nri_plugin.supervision import supervised

if TYPE_CHECKING:
    from nri_plugin.kubelet.whole_gpus import WholeGpus

_LOG: Final = logging.getLogger(__name__)

_SOCKET_LOOK_S: Final = 1.0
_NO_CLUSTER: Final = (
    "running without an API server: --kubeconfig is not set, and this is not a pod; containers are"
    " served, this node's GPU inventory is not published"
)

_NO_CDI: Final = "claims need containerd 2.3 or newer, which reports the CDI devices of containers"


async def run(
    settings: Settings,
    announce: Callable[[str], None],
    leaving: asyncio.Event,
    identity: str,
    on_heartbeat: Callable[[], None] = lambda: None,
) -> None:
    """Serve until `leaving` is set and the requests received by then are answered.

    announce: called each time the agent begins to adjust containers. identity: names this agent to
    others that wait for its lock. on_heartbeat: called every second while the event loop runs.
    """
    agent = _Agent(settings, identity, on_heartbeat)
    try:
        await agent.run(announce, leaving)
    finally:
        await agent.close()


class _Agent:
    """The agent's parts and tasks. `close` ends the tasks."""

    def __init__(self, settings: Settings, identity: str, on_heartbeat: Callable[[], None]) -> None:
        inventory = Inventory(settings.environment, record=Record(settings.run_dir))
        files = RunDirectory(
            settings.run_dir,
            lambda: random.SystemRandom().randrange(1, 1 << 64),
            code_bytes=settings.code_bytes,
            managed_free=settings.managed_free,
        )
        ledger = Ledger()
        self._parts = parts = Parts(
            settings,
            inventory,
            Contexts(settings.environment, inventory),
            files,
            Store(settings.store_dir, settings.library),
            notices=Notices(ledger.pod_uids),
            ledger=ledger,
            readiness=Readiness(time.monotonic, on_heartbeat),
        )
        self._service = Service(parts)
        self._endpoint = settings.http and Endpoint(settings.http, parts.readiness, parts.metrics)
        if self._endpoint:
            self._endpoint.start()
        self._measuring = Measuring(
            settings.run_dir,
            ledger.holds,
            inventory.nvml,
            parts.metrics,
            parts.notices,
            gpus=lambda: inventory.seen,
            whole=lambda: self._service.node.modes.held,
            audit=Audit(
                settings.store_dir,
                parts.metrics,
                parts.notices,
                files.plan,
                lambda container_id: bundle.names_of(settings.containerd_state, container_id),
                settings.code_bytes,
            ),
        )
        self._observer = Observer(parts.metrics, parts.readiness, self._service.granted)
        self._lock = Lock(settings.run_dir, identity)
        self._arbiter = ArbiterProcess(settings.run_dir, settings.environment, parts.metrics)
        self._whole: WholeGpus | None = None
        if settings.whole_gpus:
            from nri_plugin.kubelet.whole_gpus import WholeGpus

            self._whole = WholeGpus(parts, self._service.node.modes)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, announce: Callable[[str], None], leaving: asyncio.Event) -> None:
        parts, settings = self._parts, self._parts.settings
        self._start(
            "watch", lambda: watch(self._service.node, parts.ledger, parts.readiness, parts.metrics)
        )
        self._start("measuring", self._measuring.run)
        self._start("memory limits", self._service.lifecycle.driver_limits.run)
        await _unless(leaving, self._prepare())
        if not settings.in_cluster:
            _LOG.info(Line(_NO_CLUSTER))
        if not leaving.is_set():
            self._start("arbiter", self._arbiter.run)
            unused = partial(unused_gpus, self._service.node, parts)
            self._start("contexts", lambda: parts.contexts.run(unused))
            if settings.in_cluster:
                from nri_plugin.kube.cluster import Cluster

                cluster = Cluster(parts, self._service.node.modes)
                self._start("connection to the API server", cluster.run)
            if self._whole is not None:
                self._start("whole GPUs", self._whole.run)
        # All objects that exist before the tasks begin are permanent. Exclude them from garbage
        # collection, because each scan of them would delay answers to the runtime.
        gc.collect()
        gc.freeze()
        await _serve(settings, self._service, self._observer, announce, leaving)

    def _start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks.add(asyncio.create_task(supervised(name, work), name=name))

    async def _prepare(self) -> None:
        await self._parts.inventory.refresh(SILENT_S)
        report(await inspect(self._service.node), self._parts.readiness)
        if self._whole is not None:
            await self._whole.recover()
        await self._lock.acquire(self._observer.waiting)
        self._parts.inventory.record.begin()
        store = store_of(self._parts.settings)
        self._parts.claims.restore(await asyncio.to_thread(store.load))
        if self._whole is not None:  # the previous agent may have allocated GPUs until now
            await self._whole.recover()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._lock.release()
        self._service.lifecycle.close()
        if self._endpoint:
            self._endpoint.close()
        await self._parts.inventory.close()


def unused_gpus(node: Node, parts: Parts) -> Sequence[Gpu]:
    """Return the GPUs on which a CUDA context may be created to measure its size: GPUs for shares
    that no pod uses. Return no GPU while the agent is not ready, for example because the node
    belongs to another device plugin, or while the node's pods are not known."""
    if parts.readiness.problems or not parts.knows_pods:
        return ()
    used = parts.ledger.gpus() | node.modes.held
    return [gpu for gpu in node.gpus if gpu.uuid not in used]


async def _serve(
    settings: Settings,
    service: Service,
    observer: Observer,
    announce: Callable[[str], None],
    leaving: asyncio.Event,
) -> None:
    pause_s, place = settings.first_retry_s, settings.nri_socket
    on_host = settings.on_host(place)

    def ready(runtime: RuntimeInfo) -> None:
        nonlocal pause_s
        pause_s = settings.first_retry_s
        service.node.runtime = runtime
        observer.readiness.claims = None if runtime.nri_version else _NO_CDI
        observer.ready(runtime)
        version = f"NRI {runtime.nri_version}" if runtime.nri_version else "NRI before 0.12"
        announce(
            f"ready: registered with {runtime.name} {runtime.version} ({version});"
            f" {service.node.limits.text}"
        )

    while not leaving.is_set():
        longest_s = settings.last_retry_s
        try:
            unix = await connection.connected(place)
            longest_s = settings.last_refused_s
            observer.connected(on_host)
            await connection.serve(
                unix,
                service.handle,
                name=names.PLUGIN_NAME,
                index=settings.index,
                on_ready=ready,
                on_decision=observer.decided,
                leaving=leaving,
            )
            if leaving.is_set():
                return
            observer.lost("ended", f"the container runtime ended the session at {on_host}")
        except (FileNotFoundError, ConnectionRefusedError) as error:
            observer.lost(
                "absent",
                f"no process listens at {on_host} ({error.strerror}); start containerd with NRI"
                " enabled",
            )
        except (OSError, NriError) as error:
            observer.lost("failed", f"no session at {on_host}: {error}")
        pause_s = min(pause_s, longest_s)
        await _unless(leaving, _pause(place, pause_s * random.uniform(0.5, 1.0)))
        pause_s = min(pause_s * 2, longest_s)


async def _pause(place: Path, pause_s: float) -> None:
    """Sleep for `pause_s`, or until the socket at `place` is replaced."""
    before, loop = version(place), asyncio.get_running_loop()
    until_s = loop.time() + pause_s
    while True:
        left_s = until_s - loop.time()
        if left_s <= 0 or version(place) != before:
            return
        await asyncio.sleep(min(left_s, _SOCKET_LOOK_S))


async def _unless(leaving: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`; cancel it when `leaving` is set."""
    task = asyncio.create_task(work)
    signal = asyncio.create_task(leaving.wait())
    try:
        await asyncio.wait({task, signal}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        signal.cancel()
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.result()
