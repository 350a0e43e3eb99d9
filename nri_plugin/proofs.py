"""Once a container's program runs: is what was put in place what it meets? Said, not refused.

NRI takes no start back, so what is found here is an error in the log and in the metrics. The look
before the start (rootfs.py) is the one that refuses. Since then hooks of the runtime may have run,
and where the agent was away nobody has looked: what runs at Synchronize is looked at, too; so are
those that have no share and might take away another's. Nobody is removed for it: what was allowed
when it started, an agent with other settings may refuse, and an upgrade ends nobody's work.

One container after another, in a thread of their own: a tenant that runs may hold up a look at it.
Belongs to the event loop, and never waits for it in an answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from contract import names
from contract.log_lines import Line
from nri_plugin import rootfs
from nri_plugin.errors import Reason, Refused, refuse
from nri_plugin.metrics import Metrics
from nri_plugin.model import Mount, Pod
from nri_plugin.notices import Notice, Notices
from nri_plugin.rootfs import Proof
from nri_plugin.threads import Worker, in_time

_LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")

_AT_RISK: Final = frozenset({Reason.CAPABILITY_BESIDE, Reason.HOST_VOLUME, Reason.HOST_WRITTEN})
"""What a look finds; other reasons say that it found nothing out."""
_PAUSES_S: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)
"""Before each look; a start that takes longer than all of them has failed."""
_BREATH_S: Final = 0.01
"""Between two containers: at Synchronize there may be two hundred, and others wait for answers."""


@dataclass(frozen=True, slots=True)
class Started:
    """A container with a grant. standing: what must be in place; None: it is not all mounted.

    waits_in: as in rootfs.Found; None: it has been started.
    """

    pod: Pod
    name: str
    id: str
    standing: Sequence[Mount] | None
    waits_in: rootfs.File | None = None


@dataclass(frozen=True, slots=True)
class Beside:
    """A container without a share. look: raises Refused where it would not be let start now; it may
    raise OSError or ValueError, too, and blocks."""

    pod: Pod
    name: str
    id: str
    look: Callable[[], None]


class Proofs:
    """deadline_s: of a single look. allowed: capabilities, as in rootfs.examine. notices: what the
    pods' authors should read."""

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
        self._worker = Worker("proof")
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, one: Started) -> None:
        """Have it looked at as soon as its program runs; returns at once."""
        self._start(self._prove(one), f"proof of {one.id}")

    def begin_beside(self, one: Beside) -> None:
        """Have one looked at that runs; returns at once."""
        self._start(self._look_beside(one), f"look at {one.id}")

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def settled(self) -> None:
        """When what was begun has ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _prove(self, one: Started) -> None:
        for pause_s in _PAUSES_S:
            await asyncio.sleep(pause_s)
            try:
                proof = await self._look(one)
            except (Refused, OSError) as error:
                self._metrics.not_in_place.inc()
                _LOG.error(_line("limit not in place", one, problem=error))
                text = f'container "{one.name}" runs, but its limit is not in place: {error}'
                self._notify(one, names.EVENT_LIMIT_NOT_IN_PLACE, text)
                return
            if proof is not Proof.WAITS:
                _LOG.info(_line(proof.value, one))
                return

    async def _look_beside(self, one: Beside) -> None:
        try:
            await self._in_turn(one.look)
        except (OSError, ValueError) as error:
            _LOG.warning(_line("container without a share not looked at", one, problem=error))
        except Refused as refused:
            if refused.refusal.reason not in _AT_RISK:
                _LOG.warning(_line("container without a share not looked at", one, problem=refused))
                return
            text = (
                f'container "{one.name}" has no share, and started while nobody looked; it could'
                f" take limits away: {refused}; delete the pod to have it made anew"
            )
            if self._notify(one, names.EVENT_LIMIT_AT_RISK, text):
                self._metrics.at_risk.inc()
                _LOG.error(_line("limits at risk", one, problem=refused))

    def _notify(self, one: Started | Beside, reason: str, text: str) -> bool:
        """Whether it is news."""
        return self._notices.add(Notice(one.pod, one.id, reason, text))

    async def _look(self, one: Started) -> Proof:
        if one.standing is None:
            raise Refused(refuse(Reason.NOT_ADJUSTED))
        job = partial(
            rootfs.prove,
            *(self._state, one.id, one.standing, self._kept, one.waits_in),
            self._allowed,
        )
        return await self._in_turn(job)

    async def _in_turn(self, job: Callable[[], _T]) -> _T:
        async with self._turn:
            try:
                work = self._worker.run(job, self._deadline_s)
                return await in_time("look at the container once it ran", work)
            finally:
                await asyncio.sleep(_BREATH_S)


def _line(text: str, one: Started | Beside, problem: Exception | None = None) -> Line:
    return Line(
        text,
        namespace=one.pod.namespace,
        pod=one.pod.name,
        uid=one.pod.uid,
        container=one.name,
        container_id=one.id,
        problem=problem,
    )
