"""Inspects containers in threads: before their programs start, and again once these run.

The inspection before the start (rootfs.py) can refuse the container. Hooks of the runtime may run
later. Therefore the container is verified again. NRI cannot undo a start: the verification only
reports. Containers that already run at Synchronize are verified too. Verifications run one after
another, each in a thread and under a deadline. A verification that hangs reports nothing about its
container, and does not delay the others. A verification that fails because the agent has no
descriptors left is repeated. No answer to the runtime waits for a verification.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from gpuslice.contract import names
from gpuslice.kube.log_lines import Line
from nri_plugin.host import selinux
from nri_plugin.host.rootfs import Examination, Identity, Inspector, Proof
from nri_plugin.metrics import Metrics
from nri_plugin.policy.model import Container, Pod
from nri_plugin.policy.notices import Notice, Notices
from nri_plugin.policy.plan import ContainerPlan
from nri_plugin.policy.refusals import Reason, Refused, is_shortage, refused
from nri_plugin.settings import Settings
from nri_plugin.threads import ThreadPool

_LOG: Final = logging.getLogger(__name__)

_PAUSES_S: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)
"""Delays before the checks whether the program runs. A start that exceeds their sum has failed."""
_VERIFIED_AT_ONCE: Final = 64
_VERIFIED_OF_A_POD: Final = 4
_INSPECTED_AT_ONCE: Final = 256
"""Maximum number of inspections at a time: more than the pods of a node (by default 110)."""
_INSPECTED_OF_A_POD: Final = 1
"""Maximum number of inspections of one pod at a time: the kubelet starts a pod's containers one by
one. While an inspection hangs, retries for the pod fail at once."""
_PAUSE_BETWEEN_S: Final = 0.01
"""Pause between two verifications, in which other requests are answered. Synchronize may report 200
containers."""


@dataclass(frozen=True, slots=True)
class Started:
    """A container with a grant. plan: None if the container lacks a mount of its plan. waits_in: as
    in rootfs.Examination; None: the entry point already runs."""

    pod: Pod
    name: str
    id: str
    plan: ContainerPlan | None
    waits_in: Identity | None = None


class Verifier:
    """Runs an Inspector in threads. driver_seen: DriverRoot.seen. notices: receives events."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        notices: Notices,
        driver_seen: Callable[[str], Path],
    ) -> None:
        self._settings = settings
        self._notices = notices
        self._metrics = metrics
        self._inspector = Inspector(
            settings.containerd_state,
            settings.run_dir,
            settings.store_dir,
            settings.nri_socket,
            driver_seen,
            selinux.Policy(settings.host_root),
            settings.strict,
            settings.allowed_capabilities,
        )
        self._inspecting = ThreadPool("inspection", _INSPECTED_AT_ONCE, _INSPECTED_OF_A_POD)
        self._verifying = ThreadPool("proof", _VERIFIED_AT_ONCE, _VERIFIED_OF_A_POD)
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def examine(self, pod: Pod, container: Container, plan: ContainerPlan) -> Examination:
        """Inspect a container that waits for its start. Raises Refused."""
        job = partial(self._inspector.examine, container.id, plan)
        return await self._inspecting.run(job, self._settings.work_deadline_s, pod.uid)

    async def strong_beside(self, pod: Pod, container: Container) -> str:
        """Run Inspector.strong_beside in a thread. Also raises RuntimeError if no thread can be
        started."""
        job = partial(self._inspector.strong_beside, container.id)
        return await self._inspecting.run(job, self._settings.work_deadline_s, pod.uid)

    def begin(self, one: Started) -> None:
        """Verify the container as soon as its program runs. Returns at once."""
        task = asyncio.create_task(self._prove(one), name=f"proof of {one.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def settled(self) -> None:
        """Wait until all verifications that have begun have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _prove(self, one: Started) -> None:
        short: Exception | None = None
        for pause_s in _PAUSES_S:
            await asyncio.sleep(pause_s)
            try:
                proof = await self._inspect(one)
            except TimeoutError:
                _LOG.warning(_line("limit not checked: the inspection hangs", one))
                return
            except (Refused, OSError) as error:
                if is_shortage(error):
                    short = error
                    continue
                self._metrics.not_in_place.inc()
                _LOG.error(_line("limit not in place", one, problem=error))
                text = f'container "{one.name}" runs, but its limit is not in place: {error}'
                self._notices.add(Notice(one.pod, one.id, names.EVENT_LIMIT_NOT_IN_PLACE, text))
                return
            if proof is not Proof.WAITS:
                _LOG.info(_line(proof.value, one))
                return
        if short is not None:
            _LOG.warning(_line("limit not checked", one, problem=short))

    async def _inspect(self, one: Started) -> Proof:
        if one.plan is None:
            raise refused(Reason.NOT_ADJUSTED)
        job = partial(self._inspector.prove, one.id, one.plan, one.waits_in)
        async with self._turn:
            try:
                return await self._verifying.run(job, self._settings.work_deadline_s, one.pod.uid)
            finally:
                await asyncio.sleep(_PAUSE_BETWEEN_S)


def _line(text: str, one: Started, problem: Exception | None = None) -> Line:
    return Line(text, **one.pod.log_fields(one.name, one.id), problem=problem)
