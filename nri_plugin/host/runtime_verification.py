"""Verifies, once a container's program runs, that it sees the files that enforce its limit.

NRI cannot undo a start, so a failure is only reported, in the log and in the metrics; the check
before the start (rootfs.py) can refuse. Hooks of the runtime may have run since then. Containers
with a share that run at Synchronize are checked too, because they may have started while the agent
was not connected. No container is stopped.

Containers are checked one after another, each in a separate thread and under a deadline. A check
that hangs, e.g. on an unreachable NFS server, reports nothing about its container, and delays no
other check. One for which the agent has no descriptor left is repeated. Runs on the event loop; no
answer to the runtime waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from contract import names
from kube.log_lines import Line
from nri_plugin.host import rootfs
from nri_plugin.host.rootfs import Proof
from nri_plugin.metrics import Metrics
from nri_plugin.policy.model import Mount, Pod
from nri_plugin.policy.notices import Notice, Notices
from nri_plugin.policy.refusals import Reason, Refused, refused
from nri_plugin.policy.shortage import is_shortage
from nri_plugin.threads import ThreadPool

_LOG: Final = logging.getLogger(__name__)

_PAUSES_S: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)
"""Delay before each check; a start that takes longer than all of them has failed."""
_AT_ONCE: Final = 64
_OF_A_POD: Final = 4
_PAUSE_BETWEEN_S: Final = 0.01
"""Pause between two containers: Synchronize may bring 200, and other requests need answers."""


@dataclass(frozen=True, slots=True)
class Started:
    """A container with a grant. required: what must be mounted; None: its own mounts lack a part.

    waits_in: as in rootfs.Found; None: it has been started.
    """

    pod: Pod
    name: str
    id: str
    required: Sequence[Mount] | None
    waits_in: rootfs.File | None = None


class Proofs:
    """deadline_s: of a single check. allowed: capabilities, as in rootfs.examine. notices: events
    for the pods' authors."""

    def __init__(
        self,
        containerd_state: Path,
        kept: rootfs.Kept,
        metrics: Metrics,
        deadline_s: float,
        allowed: AbstractSet[str] = frozenset(),
        notices: Notices | None = None,
    ) -> None:
        self._allowed = allowed
        self._notices = notices or Notices()
        self._state = containerd_state
        self._kept = kept
        self._metrics = metrics
        self._deadline_s = deadline_s
        self._threads = ThreadPool("proof", _AT_ONCE, _OF_A_POD)
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, one: Started) -> None:
        """Check the container as soon as its program runs; returns at once."""
        task = asyncio.create_task(self._prove(one), name=f"proof of {one.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def settled(self) -> None:
        """Wait until all started checks have ended."""
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
        if one.required is None:
            raise refused(Reason.NOT_ADJUSTED)
        job = partial(
            rootfs.prove,
            *(self._state, one.id, one.required, self._kept, one.waits_in),
            self._allowed,
        )
        async with self._turn:
            try:
                return await self._threads.run(job, self._deadline_s, one.pod.uid)
            finally:
                await asyncio.sleep(_PAUSE_BETWEEN_S)


def _line(text: str, one: Started, problem: Exception | None = None) -> Line:
    return Line(
        text, **one.pod.log_fields, container=one.name, container_id=one.id, problem=problem
    )
