"""The containers of this node, as far as the agent must know them: whom it answered what, who uses
which files, and what of the GPUs is held.

Nothing here that the runtime could not tell again: `take_over` rebuilds it at every Synchronize.
Files are made, read and removed by the one worker, in the order in which it is asked; everything
else happens on the event loop, each change in one step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from contract.log_lines import Line
from nri_plugin import ledger, recovery
from nri_plugin.bounds import Bounds
from nri_plugin.errors import FilesError, Refused
from nri_plugin.files import RunDirectory
from nri_plugin.ledger import Ledger
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.metrics import Metrics
from nri_plugin.model import Adjustment, Claim, Container, Gpu, Pod
from nri_plugin.recovery import Running, Stray
from nri_plugin.settings import Settings
from nri_plugin.sweep import Sweeper
from nri_plugin.threads import Worker

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answered:
    """What a container gets, and how that was told the runtime."""

    wanted: Adjustment
    sent: nri.CreateContainerResponse


class Tenants:
    """worker: the one that does all work on `files`. bounds: what the API server says."""

    def __init__(
        self,
        settings: Settings,
        files: RunDirectory,
        worker: Worker,
        metrics: Metrics,
        bounds: Bounds,
    ) -> None:
        self._bounds = bounds
        self._settings = settings
        self._files = files
        self._worker = worker
        self._metrics = metrics
        self._answers: dict[str, Answered] = {}
        self._users: dict[str, set[str]] = {}
        self._rumours: dict[str, str] = {}
        """Containers that an earlier session was answered for, and that the runtime has not told of
        since; with the key of their files."""
        self.ledger = Ledger()
        self.sweeper = Sweeper(files, worker, settings.work_deadline_s, lambda: self._users)

    async def take_over(self, running: Sequence[Running], gpus: Sequence[Gpu]) -> None:
        """Know what runs, and nothing else; TimeoutError where the files cannot be read in time."""
        keys = {one.key for one in running if one.key is not None}
        job = partial(self._files.grants, keys)
        grants = await self._worker.run(job, self._settings.work_deadline_s)
        found = recovery.survey(running, grants, gpus)
        self._users = {key: set(ids) for key, ids in found.users.items()}
        # What was answered just now may be in the making, and not listed yet: it stays a while.
        listed = {one.id for one in running}
        self._rumours = {
            container_id: answer.wanted.key
            for container_id, answer in self._answers.items()
            if answer.wanted.key is not None and container_id not in listed
        }
        for container_id, key in self._rumours.items():
            self._users.setdefault(key, set()).add(container_id)
        self.ledger.adopt(found.holds, frozenset(self._answers))
        self._answers.clear()
        if self._rumours:
            loop = asyncio.get_running_loop()
            loop.call_later(self._settings.making_s, self._doubt, frozenset(self._rumours))
        self._report(found.strays)
        self.sweeper.begin()

    def answer_of(self, container_id: str) -> Answered | None:
        """What was answered for a container that is being made."""
        return self._answers.get(container_id)

    def answered(self, container_id: str, answer: Answered) -> None:
        self._answers[container_id] = answer

    def take(
        self,
        pod: Pod,
        container: Container,
        claimed: Claim,
        key: str,
        gpus: Sequence[Gpu],
    ) -> None:
        """Give it its part of the GPUs; raises Refused where they, or its pod's allocation of
        them, do not have as much left, or the API server is known to say otherwise.

        From here on it uses the files of `key`, until it is removed, whatever comes of it: work on
        them that nobody waits for any more goes on, and the removal comes behind it.
        """
        holding = frozenset(hold.pod_uid for hold in self.ledger.holds())
        objection = self._bounds.objection(pod, gpus, holding)
        if objection is not None:
            raise Refused(objection)
        hold = ledger.hold(container.id, key, claimed.shared, pod, container.name, claimed.shares)
        shortage = self.ledger.take(hold, gpus, ledger.parts(claimed.allocated))
        if shortage is not None:
            raise Refused(shortage.refusal())
        self._rumours.pop(container.id, None)
        self._users.setdefault(key, set()).add(container.id)

    def _doubt(self, container_ids: AbstractSet[str]) -> None:
        """They hold nothing and use no files, but for those that the runtime has told of since. A
        runtime that was killed tells of no removal of a container that did not start before."""
        self.ledger.doubt(container_ids)
        doubtful = container_ids & self._rumours.keys()
        for container_id in doubtful:
            self._leaves(container_id, self._rumours.pop(container_id))
        if doubtful:
            self.sweeper.begin()

    def _leaves(self, container_id: str, key: str) -> bool:
        """It uses the files of `key` no more; whether nobody does."""
        users = self._users.get(key, set())
        users.discard(container_id)
        if not users:
            self._users.pop(key, None)
        return not users

    def starts(self, container_id: str) -> Answered | None:
        """It is made; returns what it was answered, if that was to this session."""
        self.ledger.heard_of(container_id)
        self._rumours.pop(container_id, None)
        return self._answers.pop(container_id, None)

    def ended(self, container_id: str) -> None:
        """It is dead, or never came to be: it holds nothing, and its files stay."""
        self.ledger.drop(container_id)

    async def removed(self, container_id: str, mounted: str | None) -> None:
        """It is gone, and its files with their last user. mounted: the key of those it has."""
        self.ended(container_id)
        self._rumours.pop(container_id, None)
        answer = self._answers.pop(container_id, None)
        key = mounted or (answer and answer.wanted.key)
        if key and self._leaves(container_id, key):
            job = partial(self._remove, key)
            with suppress(TimeoutError):
                await self._worker.run(job, self._settings.work_deadline_s)

    def not_made(self, container_id: str, key: str) -> None:
        """Its creation failed: it holds nothing. The work on its files may still be under way;
        their removal comes behind it."""
        self.ended(container_id)
        if self._leaves(container_id, key):
            self._worker.post(partial(self._remove, key))

    def _remove(self, key: str) -> None:
        """Runs in the worker."""
        try:
            self._files.remove(key)
        except FilesError as error:
            _LOG.warning(Line("files stay until the next sweep", key=key, error=error))

    def _report(self, strays: Sequence[tuple[Stray, Running]]) -> None:
        for stray, one in strays:
            _LOG.error(
                Line(
                    recovery.ADVICE[stray],
                    namespace=one.pod.namespace,
                    pod=one.pod.name,
                    uid=one.pod.uid,
                    container=one.name,
                    container_id=one.id,
                )
            )
        for stray in Stray:
            count = sum(kind is stray for kind, _ in strays)
            self._metrics.strays.labels(stray.value).set(count)
