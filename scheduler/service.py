"""Creates cache, verbs, binder, leadership and endpoint, connects them, and stops them in order.

On shutdown no new write starts. The pending work is finished, and then the extender's address is
closed. Nothing is lost if the process is killed, because it reads all state from the API server.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpuslice.contract.dialects import DIALECTS, KOORDINATOR
from gpuslice.kube.addresses import host_port
from gpuslice.kube.client import Kube
from gpuslice.kube.log_lines import Format, Line
from scheduler.admission import Admission
from scheduler.binder import Binder
from scheduler.cache import Cache
from scheduler.core.request import Policy
from scheduler.decisions.requeue import Unschedulable
from scheduler.decisions.sampling import Requeue, Sampling
from scheduler.decisions.state import State
from scheduler.decisions.unserved import Unserved
from scheduler.decisions.verbs import Verbs
from scheduler.endpoint import KUBE_SCHEDULER, Address, Endpoint
from scheduler.events import Events
from scheduler.extender import Extender
from scheduler.leadership import Leadership, boot_clock
from scheduler.metrics import Metrics
from scheduler.queues.controller import Queues
from scheduler.requeuer import Requeuer
from scheduler.version_skew import VersionSkew

_LOG: Final = logging.getLogger(__name__)

COLLECTED_AFTER: Final = (10_000, 20, 50)
"""Thresholds of Python's garbage collector. With its default, 700, 10, 10, the initial lists take
twice as long, because all stored pods are traversed forty times, with pauses of 0.2 s. Stored
objects have no cycles, and other garbage amounts to megabytes."""

_RETRY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. The flags' help (scheduler.command_line) describes each."""

    kubeconfig: str = ""
    """A file's path. If empty, the in-cluster configuration is used, or else kubectl's."""
    listen: Address = ("127.0.0.1", 9444)
    http: Address | None = ("0.0.0.0", 9445)
    """None if the pages of endpoint.py are not served."""
    policies: Mapping[str, Policy] = field(default_factory=dict)
    """The policy by schedulerName, for pods that specify none. Without one, binpack is used."""
    dialects: frozenset[str] = frozenset({KOORDINATOR.name})
    claim_templates: bool = False
    queues: bool = False
    """Whether to serve KAI's Queues by Kueue."""
    kube_scheduler: Address = KUBE_SCHEDULER
    kube_scheduler_version: str = ""
    log_format: Format = Format.LOGFMT
    verbose: bool = False

    check_s: float = 5.0
    """The interval at which Bindings of unknown outcome are checked."""
    report_s: float = 20.0
    """The interval at which Events are written."""
    versions_s: float = 60.0
    """The interval at which kube-scheduler's version is compared with the API server's."""
    leave_s: float = 20.0
    """The time limit for pending work at shutdown."""


async def run(
    settings: Settings, kube: Kube, leaving: asyncio.Event, announce: Callable[[str], None]
) -> None:
    """Run until `leaving` is set and pending work has ended. announce: called with status lines.

    Raise OSError if the extender's address is taken. Any other exception is a defect of this
    program, after which its state is not reliable.
    """
    gc.set_threshold(*COLLECTED_AFTER)
    await _Service(settings, kube).run(leaving, announce)


class _Service:
    """All parts of a running scheduler."""

    def __init__(self, settings: Settings, kube: Kube) -> None:
        hostname, on = socket.gethostname(), settings.dialects
        _LOG.info(Line("scheduler started", hostname=hostname))
        self._settings = settings
        self._state, metrics = State(dialects=on), Metrics()
        served = {d.scheduler_name for d in DIALECTS if d.name in on}.union(settings.policies)
        retries = Unschedulable(self._state, served)
        self._unserved = Unserved(sorted(served), boot_clock)
        metrics.waiting.set_function(retries.__len__)
        self._missed: asyncio.Queue[Requeue] = asyncio.Queue()
        sampling = Sampling(self._state, self._missed.put_nowait)
        self._leadership = guard = Leadership(hostname)
        metrics.lease_held.set_function(guard.may_write)
        metrics.second_installation.set_function(lambda: guard.second_installation)
        self._cache = Cache(
            kube,
            self._state,
            boot_clock,
            retries=retries,
            sampling=sampling,
            unserved=self._unserved,
            observe_scheduler=guard.observe,
        )
        verbs = Verbs(self._state, settings.policies, retries, sampling)
        self._requeuer = Requeuer(retries, sampling, kube, metrics, boot_clock)
        self._binder = Binder(self._state, kube, guard, verbs, boot_clock)
        self._events = Events(kube.post, metrics, boot_clock, hostname)
        self._skew = VersionSkew(kube, settings.kube_scheduler_version)
        self._endpoint = Endpoint(
            self._state, self._cache, metrics, lambda: self._status, settings.kube_scheduler
        )
        self._extender = Extender(verbs, self._binder, guard, lambda: self._cache.synced, metrics)
        self._admission = Admission(kube, self._is_ready, metrics)
        events = Events(kube.post, metrics, boot_clock, hostname)
        self._queues = Queues(
            kube, guard.may_write, self._state.gpu_bytes, events, metrics, boot_clock
        )

    async def run(self, leaving: asyncio.Event, announce: Callable[[str], None]) -> None:
        serving = await self._extender.serve(*self._settings.listen)
        host, port, *_ = serving.addresses[0]
        announce(f"extender: http://{host_port(host, port)}")
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(work, name=name)
                    for name, work in self._work(announce).items()
                ]
                await leaving.wait()
                _LOG.info("shutting down: pending Bindings are completed, new ones refused")
                self._leadership.leaving = True
                await self._binder.finish(self._settings.leave_s)
                for task in tasks:
                    task.cancel()
        finally:
            await serving.cleanup()

    def _work(self, announce: Callable[[str], None]) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Return the coroutine of each task, by the task's name."""
        settings = self._settings
        work = {
            "cache": self._cache.run(),
            "leadership": self._leadership.run(self._cache.relist),
            "check": _every(settings.check_s, self._binder.check_overdue),
            "retry": _every(_RETRY_S, self._retry),
            "requeue": self._requeuer.run(self._missed),
            "report": _every(settings.report_s, self._report),
            "ready": _ready(self._cache, announce),
            "admission": self._admission.run(),
            "versions": _every(settings.versions_s, self._skew.check),
        }
        if settings.queues:
            work["queues"] = self._queues.run()
        if settings.http is not None:
            work["endpoint"] = self._endpoint.run(
                settings.http, lambda address: announce(f"serving: http://{address}")
            )
        return work

    @property
    def _status(self) -> str:
        """The last lines of /readyz."""
        return "\n".join(filter(None, (self._skew.problem, self._leadership.status)))

    def _is_ready(self) -> bool:
        """Return whether this process can bind a pod that requests a share."""
        has_agent, problems = self._state.agents.has_ready, self._endpoint.problems
        return has_agent and not problems and self._leadership.may_write()

    async def _retry(self) -> None:
        """Requeue refused pods if this process may bind. Other processes refuse no pods."""
        if self._leadership.may_write():
            await self._requeuer.requeue_due()

    async def _report(self) -> None:
        """Write Events, in the process that may bind or in that of a second installation."""
        if self._leadership.may_write():
            await self._events.problems((*self._state.problems(), *self._unserved.problems()))
            await self._events.notices(self._binder.take_notices())
        elif self._leadership.second_installation:
            status = self._leadership.status
            _LOG.warning(Line("second installation", status=status))
            await self._events.second_installation(status)


async def _ready(cache: Cache, announce: Callable[[str], None]) -> None:
    await cache.wait_synced()
    # `freeze` keeps the collector from traversing the cached objects, which live long.
    gc.collect()
    gc.freeze()
    announce("ready: all pods, nodes and GPUs are known")


async def _every(pause_s: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(pause_s)
        await work()
