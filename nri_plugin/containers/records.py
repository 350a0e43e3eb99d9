"""The state of this node's containers: the answers sent, the users of files, the holds of GPUs.

The runtime can supply all of it: `take_over` rebuilds it at every Synchronize. One worker creates,
reads and removes the files, in the order of the requests. Everything else happens on the event
loop, each change in one step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from contract import names
from kube.log_lines import Line
from nri_plugin.host.files import RunDirectory
from nri_plugin.host.sweep import Sweeper
from nri_plugin.metrics import Metrics
from nri_plugin.policy import ledger, recovery
from nri_plugin.policy.bound_pods import BoundPods
from nri_plugin.policy.gpu_modes import GpuModes
from nri_plugin.policy.ledger import Ledger
from nri_plugin.policy.model import Adjustment, Claim, Container, Gpu, Pod
from nri_plugin.policy.notices import Notice, Notices
from nri_plugin.policy.pod_policy import ClaimSource
from nri_plugin.policy.recovery import Running, Stray
from nri_plugin.policy.refusals import FilesError, Refused
from nri_plugin.settings import Settings
from nri_plugin.threads import Worker

_LOG: Final = logging.getLogger(__name__)

_MISSED: Final = (
    "it was created while the node agent did not run; delete the pod to recreate it; until then its"
    " share stays reserved"
)
_T = TypeVar("_T")
"""The runtime's form of an adjustment."""


@dataclass(frozen=True, slots=True)
class Answered(Generic[_T]):
    """A container's adjustment, and the answer that was sent to the runtime."""

    wanted: Adjustment
    sent: _T


class ContainerRecords(Generic[_T]):
    """worker: the one that does all work on `files`. bound_pods: the API server's state."""

    def __init__(
        self,
        settings: Settings,
        files: RunDirectory,
        worker: Worker,
        metrics: Metrics,
        bound_pods: BoundPods,
        modes: GpuModes,
        notices: Notices,
        claims: ClaimSource,
    ) -> None:
        self._notices = notices
        self._claims = claims
        self._bound_pods = bound_pods
        self._modes = modes
        self._settings = settings
        self._files = files
        self._worker = worker
        self._metrics = metrics
        self._answers: dict[str, Answered[_T]] = {}
        self._users: dict[str, set[str]] = {}
        self._unreported: dict[str, str] = {}
        """Containers that an earlier session answered and that the runtime has not reported since,
        with the key of their files."""
        self.ledger = Ledger()
        self.is_complete = False
        """Whether the ledger has what runs: the runtime has listed its containers."""
        self.sweeper = Sweeper(files, worker, settings.work_deadline_s, lambda: self._users)

    async def take_over(self, running: Sequence[Running], gpus: Sequence[Gpu]) -> None:
        """Replace the state by what runs. TimeoutError if the files cannot be read in time."""
        keys = {one.key for one in running if one.key is not None}
        job = partial(self._files.grants, keys)
        grants = await self._worker.run(job, self._settings.work_deadline_s)
        found = recovery.survey(running, grants, gpus, self._claims, self._modes.pods)
        self._users = {key: set(ids) for key, ids in found.users.items()}
        # A container answered just now may be in creation and not listed yet: keep it for a while.
        listed = {one.id for one in running}
        self._unreported = {
            container_id: answer.wanted.key
            for container_id, answer in self._answers.items()
            if answer.wanted.key is not None and container_id not in listed
        }
        for container_id, key in self._unreported.items():
            self._users.setdefault(key, set()).add(container_id)
        self.ledger.adopt(found.holds, frozenset(self._answers))
        self.is_complete = True
        self._answers.clear()
        if self._unreported:
            loop = asyncio.get_running_loop()
            loop.call_later(
                self._settings.making_s, self._drop_unreported, frozenset(self._unreported)
            )
        self._report(found.strays)
        self.sweeper.begin()

    def answer_of(self, container_id: str) -> Answered[_T] | None:
        """Return the answer for a container that is being created."""
        return self._answers.get(container_id)

    def answered(self, container_id: str, answer: Answered[_T]) -> None:
        self._answers[container_id] = answer

    def take(
        self,
        pod: Pod,
        container: Container,
        claim: Claim,
        key: str,
        gpus: Sequence[Gpu],
    ) -> None:
        """Enter its share in the ledger. Raises Refused if its GPUs, or its pod's allocation of
        them, lack free capacity, a pod holds one of them whole, or the API server is known to
        contradict the grant.

        From now until it is removed it uses the files of `key`, even if the creation fails: work on
        them continues after a timeout, and the removal runs after that work.
        """
        holding = frozenset(hold.pod_uid for hold in self.ledger.holds())
        uuids = [share.uuid for share in claim.shares]
        objection = self._bound_pods.objection(pod, gpus, holding) or self._modes.objection(uuids)
        if objection is not None:
            raise Refused(objection)
        hold = ledger.hold(container.id, key, claim.shared, pod, container.name, claim.shares)
        shortage = self.ledger.take(hold, gpus, ledger.parts(claim.allocated))
        if shortage is not None:
            raise Refused(shortage.refusal())
        self._unreported.pop(container.id, None)
        self._users.setdefault(key, set()).add(container.id)

    def _drop_unreported(self, container_ids: AbstractSet[str]) -> None:
        """Drop those of them that the runtime has not reported since. A runtime that was killed
        does not report the removal of a container that had not started."""
        self.ledger.mark_unconfirmed(container_ids)
        unreported = container_ids & self._unreported.keys()
        for container_id in unreported:
            self._leaves(container_id, self._unreported.pop(container_id))
        if unreported:
            self.sweeper.begin()

    def _leaves(self, container_id: str, key: str) -> bool:
        """It uses the files of `key` no more. Returns whether the files have no user left."""
        users = self._users.get(key, set())
        users.discard(container_id)
        if not users:
            self._users.pop(key, None)
        return not users

    def starts(self, container_id: str) -> Answered[_T] | None:
        """It is created; return its answer, if this session sent it."""
        self.ledger.reported(container_id)
        self._unreported.pop(container_id, None)
        return self._answers.pop(container_id, None)

    def ended(self, container_id: str) -> None:
        """It exited, or was never created: it holds nothing, and its files stay."""
        self.ledger.drop(container_id)

    async def removed(self, container_id: str, mounted: str | None) -> None:
        """It is removed, and its files with their last user. mounted: the key of its files."""
        self.ended(container_id)
        self._unreported.pop(container_id, None)
        answer = self._answers.pop(container_id, None)
        key = mounted or (answer and answer.wanted.key)
        if key and self._leaves(container_id, key):
            job = partial(self._remove, key)
            with suppress(TimeoutError):
                await self._worker.run(job, self._settings.work_deadline_s)

    def not_made(self, container_id: str, key: str) -> None:
        """Its creation failed: it holds nothing. Work on its files may still be running; their
        removal runs after it."""
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
            if stray is Stray.NOT_ADJUSTED:
                text = f'container "{one.name}" runs without its GPU: {_MISSED}'
                self._notices.add(Notice(one.pod, one.name, names.EVENT_WITHOUT_GPU, text))
            _LOG.error(
                Line(
                    recovery.ADVICE[stray],
                    **one.pod.log_fields,
                    container=one.name,
                    container_id=one.id,
                )
            )
        for stray in Stray:
            count = sum(kind is stray for kind, _ in strays)
            self._metrics.strays.labels(stray.value).set(count)
