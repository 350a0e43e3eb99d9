"""Creates cache, verbs, binder, leader and endpoint, connects them, and stops them in order.

On shutdown: no new write starts, pending work ends, the Lease is released, and only then
kube-scheduler's calls are refused. A kill at any moment loses nothing: all state is read from the
API server again.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import logging
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpuslice.contract.dialects import DIALECTS, KOORDINATOR
from gpuslice.kube.client import Kube
from gpuslice.kube.log_lines import Format, Line
from scheduler.admission import Admission
from scheduler.binder import Binder
from scheduler.cache import Cache
from scheduler.core.request import Policy
from scheduler.decisions.requeue import Unschedulable
from scheduler.decisions.sampling import Sampling
from scheduler.decisions.state import State
from scheduler.decisions.verbs import Verbs
from scheduler.endpoint import Address, Endpoint
from scheduler.events import Events
from scheduler.extender import Extender
from scheduler.leader import Leader, boot_clock
from scheduler.leadership.election import Candidate
from scheduler.metrics import Metrics
from scheduler.requeuer import Requeuer

_LOG: Final = logging.getLogger(__name__)

COLLECTED_AFTER: Final = (10_000, 20, 50)
"""Python's default 700, 10, 10 traverses all pods forty times during the initial lists, half of
their time, with pauses of 0.2 s. Stored objects have no cycles; those that do amount to
megabytes."""

_RETRY_S: Final = 1.0
_MAX_IDENTITIES: Final = 8
"""Identities of earlier processes; some may have exited before they held the Lease."""
_IDENTITY_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. The flags' help (scheduler.command_line) describes each."""

    kubeconfig: str = ""
    """Empty: the in-cluster configuration, or else the same as kubectl's."""
    listen: Address = ("127.0.0.1", 9444)
    http: Address | None = ("0.0.0.0", 9445)
    """None: not served."""
    installation: str = "default"
    state_dir: Path | None = None
    policies: Mapping[str, Policy] = field(default_factory=dict)
    """By schedulerName, for pods that specify no policy; the default is binpack."""
    dialects: frozenset[str] = frozenset({KOORDINATOR.name})
    log_format: Format = Format.LOGFMT
    verbose: bool = False

    check_s: float = 5.0
    """Interval of checks for Bindings of unknown outcome."""
    report_s: float = 20.0
    """Interval of writing Events about problems."""
    leave_s: float = 20.0
    """Time limit for finishing pending work and releasing the Lease."""


class IdentityError(RuntimeError):
    """The directory cannot be used; the text has the reason."""


@contextlib.contextmanager
def identity(installation: str, directory: Path | None = None) -> Iterator[Candidate]:
    """This process's identity, and those of predecessors that have certainly exited. Raises
    IdentityError.

    directory: outlives the process and is not shared (an emptyDir of the pod). Acquiring the lock
    of a file in it proves that the earlier process has exited; the file contains the last
    identities. Their Lease need not be waited out.
    """
    name = f"{socket.gethostname()}_{uuid.uuid4().hex[:12]}"
    if directory is None:
        yield Candidate(name, installation)
        return
    with contextlib.ExitStack() as stack:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            file = os.open(directory / "identity", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, file)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            before = os.pread(file, _IDENTITY_BYTES, 0).decode("utf-8", "replace").split()
            # One write. A kill during it leaves at worst names that belong to no process.
            written = "\n".join((name, *before[: _MAX_IDENTITIES - 1])).encode()
            os.pwrite(file, written.ljust(_IDENTITY_BYTES), 0)
        except OSError as error:
            busy = isinstance(error, BlockingIOError)
            why = "another scheduler that runs uses it" if busy else error.strerror
            raise IdentityError(f"{directory}: {why}") from error
        yield Candidate(name, installation, frozenset(before))


async def run(
    settings: Settings,
    kube: Kube,
    leaving: asyncio.Event,
    announce: Callable[[str], None],
) -> None:
    """Runs until `leaving` is set and pending work has ended. announce: writes a line for the
    parent process.

    Raises IdentityError, OSError if the extender's address is taken, and any defect of this
    program, after which its state is not reliable.
    """
    with identity(settings.installation, settings.state_dir) as me:
        await _run(settings, kube, me, leaving, announce)


async def _run(
    settings: Settings,
    kube: Kube,
    me: Candidate,
    leaving: asyncio.Event,
    announce: Callable[[str], None],
) -> None:
    gc.set_threshold(*COLLECTED_AFTER)
    metrics, state = Metrics(), State()
    after = len(me.exited) or None
    _LOG.info(
        Line("scheduler started", identity=me.identity, installation=me.installation, after=after)
    )
    served = {each.scheduler_name for each in DIALECTS if each.name in settings.dialects}
    profiles = {*(served - {""}), *settings.policies}
    retries = Unschedulable(state, profiles)
    metrics.waiting.set_function(retries.__len__)
    missed = asyncio.Event()
    sampling = Sampling(state, missed.set)
    on = settings.dialects
    cache = Cache(kube, state, boot_clock, retries=retries, enabled=on)
    leader = Leader(kube, me, cache.relist, metrics)
    verbs = Verbs(state, settings.policies, retries, on, sampling)
    requeuer = Requeuer(retries, sampling, kube, metrics, boot_clock)
    binder = Binder(state, kube, leader, verbs, boot_clock, enabled=on)
    events = Events(kube, metrics, boot_clock, me.identity)
    endpoint = Endpoint(state, cache, metrics, lambda: leader.status)
    extender = Extender(verbs, binder, leader, cache, metrics)
    admission = Admission(
        kube, lambda: state.has_agent and not endpoint.problems, leader.may_write, metrics
    )

    async def retry() -> None:
        """Only in the process that may bind: the others answer no filter, and so refuse no pod."""
        if leader.may_write():
            await requeuer.requeue_due()

    async def report() -> None:
        """Only the process that may bind reports; a second installation reports itself."""
        if leader.may_write():
            await events.notices(binder.take_notices())
            await events.problems(state.problems())
        elif leader.second_installation:
            await events.second_installation(leader.status)

    serving = await extender.serve(*settings.listen)
    host, port = serving.addresses[0][:2]
    announce(f"extender: http://{host}:{port}")
    try:
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(cache.run(), name="cache")]
            others.append(
                group.create_task(_every(settings.check_s, binder.check_overdue), name="check")
            )
            others.append(group.create_task(_every(_RETRY_S, retry), name="retry"))
            others.append(group.create_task(requeuer.run(missed), name="requeue"))
            others.append(group.create_task(_every(settings.report_s, report), name="report"))
            if settings.http is not None:
                pages = endpoint.run(settings.http, lambda at: announce(f"serving: http://{at}"))
                others.append(group.create_task(pages, name="endpoint"))
            others.append(group.create_task(_ready(cache, announce), name="ready"))
            others.append(group.create_task(admission.run(), name="admission"))
            leading = group.create_task(leader.run(), name="lead")
            await _first(leaving.wait(), leading)
            _LOG.info("shutting down: pending Bindings are completed, new ones refused")
            leader.leave()
            done, _ = await asyncio.wait([leading], timeout=settings.leave_s)
            if not done:
                _LOG.warning(Line("exited without releasing the Lease", status=leader.status))
                leading.cancel()
            for task in others:
                task.cancel()
    finally:
        await serving.cleanup()


async def _first(waited: Awaitable[object], task: asyncio.Task[None]) -> None:
    """Returns when either of the two ends."""
    waiting = asyncio.ensure_future(waited)
    await asyncio.wait([waiting, task], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


async def _ready(cache: Cache, announce: Callable[[str], None]) -> None:
    await cache.wait_synced()
    # Cached objects are long-lived, so the collector need not traverse them again.
    gc.collect()
    gc.freeze()
    announce("ready: all pods, nodes and GPUs are known")


async def _every(pause_s: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(pause_s)
        await work()
