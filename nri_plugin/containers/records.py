"""The state of this node's containers: the plans answered, the users of files, the holds of GPUs.

The runtime can supply all of it: `take_over` rebuilds it at every Synchronize. One worker creates,
reads and removes the files, in the order of the requests. Everything else happens on the event
loop, each change in one step.

After a crash a thousand directories may have no user, and the kernel takes milliseconds to remove
one. A sweep removes them one by one, so that a container waits for at most one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from collections.abc import Container as AbstractContainer
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from typing import Final

from gpuslice.contract import names
from gpuslice.kube.log_lines import Line
from nri_plugin.containers.parts import Parts
from nri_plugin.host.files import RunDirectory
from nri_plugin.policy import ledger, recovery
from nri_plugin.policy.gpu_modes import GpuModes
from nri_plugin.policy.model import Claim, Container, Gpu, Pod
from nri_plugin.policy.notices import Notice
from nri_plugin.policy.plan import ContainerPlan
from nri_plugin.policy.recovery import Running, Stray
from nri_plugin.policy.refusals import FilesError, Refused
from nri_plugin.threads import Worker

_LOG: Final = logging.getLogger(__name__)

_MISSED: Final = (
    "it was created while the node agent did not run; delete the pod to recreate it; until then its"
    " share stays reserved"
)


class Records:
    """worker: the one that does all work on the files. modes: of the node's GPUs."""

    def __init__(self, parts: Parts, worker: Worker, modes: GpuModes) -> None:
        self._parts = parts
        self._settings = parts.settings
        self._modes = modes
        self._worker = worker
        self.plans: dict[str, ContainerPlan] = {}
        """Of containers that are being created: answered, and not started yet."""
        self._users: dict[str, set[str]] = {}
        self._unreported: dict[str, str] = {}
        """Containers that an earlier session answered and that the runtime has not reported since,
        with the key of their files."""
        self.ledger = parts.ledger
        self._sweeping: asyncio.Task[None] | None = None

    def close(self) -> None:
        """End the sweep."""
        if self._sweeping is not None:
            self._sweeping.cancel()

    async def settled(self) -> None:
        """Wait until the current sweep has ended."""
        if self._sweeping is not None:
            await asyncio.wait({self._sweeping})

    def _sweep(self) -> None:
        """Begin anew to remove the directories that no container uses."""
        self.close()
        files, deadline_s = self._parts.files, self._settings.work_deadline_s
        work = sweep(files, self._worker, deadline_s, lambda: self._users)
        self._sweeping = asyncio.create_task(work, name="sweep")

    async def take_over(self, running: Sequence[Running], gpus: Sequence[Gpu]) -> None:
        """Replace the state by what runs. TimeoutError if the files cannot be read in time."""
        keys = {one.key for one in running if one.key is not None}
        job = partial(self._parts.files.grants, keys)
        grants = await self._worker.run(job, self._settings.work_deadline_s)
        state = recovery.survey(running, grants, gpus, self._parts.claims, self._modes.pods)
        self._users = {key: set(ids) for key, ids in state.users.items()}
        # A container answered just now may be in creation and not listed yet: keep it for a while.
        listed = {one.id for one in running}
        self._unreported = {
            container_id: plan.key
            for container_id, plan in self.plans.items()
            if plan.key is not None and container_id not in listed
        }
        for container_id, key in self._unreported.items():
            self._users.setdefault(key, set()).add(container_id)
        self.ledger.adopt(state.holds, self._unreported)
        self.plans.clear()
        if self._unreported:
            loop = asyncio.get_running_loop()
            loop.call_later(
                self._settings.making_s, self._drop_unreported, frozenset(self._unreported)
            )
        self._report(state.strays)
        self._sweep()

    def take(
        self, pod: Pod, container: Container, claim: Claim, key: str, gpus: Sequence[Gpu]
    ) -> None:
        """Enter its share in the ledger. Raises Refused if its GPUs, or its pod's allocation of
        them, lack free capacity, a pod holds one of them whole, or the API server is known to
        contradict the grant.

        From now until it is removed it uses the files of `key`, even if the creation fails: work on
        them continues after a timeout, and the removal runs after that work.
        """
        objection = self._parts.bound_pods.objection(
            pod, gpus, self.ledger.pod_uids()
        ) or self._modes.objection(share.uuid for share in claim.shares)
        if objection is not None:
            raise Refused(objection)
        hold = ledger.hold(container.id, key, claim.shared, pod, container.name, claim.shares)
        refusal = self.ledger.take(hold, gpus, ledger.parts(claim.allocated))
        if refusal is not None:
            raise Refused(refusal)
        self._unreported.pop(container.id, None)
        self._users.setdefault(key, set()).add(container.id)

    def _drop_unreported(self, container_ids: AbstractSet[str]) -> None:
        """Drop those of them that the runtime has not reported since. A runtime that was killed
        does not report the removal of a container that had not started."""
        unreported = container_ids & self._unreported.keys()
        for container_id in unreported:
            self.ledger.drop(container_id)
            self._leaves(container_id, self._unreported.pop(container_id))
        if unreported:
            self._sweep()

    def _leaves(self, container_id: str, key: str) -> bool:
        """It uses the files of `key` no more. Returns whether the files have no user left."""
        users = self._users.get(key, set())
        users.discard(container_id)
        if not users:
            self._users.pop(key, None)
        return not users

    def starts(self, container_id: str) -> ContainerPlan | None:
        """It is created; return its plan, if this session answered it."""
        self._unreported.pop(container_id, None)
        return self.plans.pop(container_id, None)

    async def removed(self, container_id: str, mounted: str | None) -> None:
        """It is removed, and its files with their last user. mounted: the key of its files."""
        self.ledger.drop(container_id)
        self._unreported.pop(container_id, None)
        plan = self.plans.pop(container_id, None)
        key = mounted or (plan and plan.key)
        if key and self._leaves(container_id, key):
            job = partial(self._remove, key)
            with suppress(TimeoutError):
                await self._worker.run(job, self._settings.work_deadline_s)

    def not_made(self, container_id: str, key: str) -> None:
        """Its creation failed: it holds nothing. Work on its files may still be running; their
        removal runs after it."""
        self.ledger.drop(container_id)
        if self._leaves(container_id, key):
            self._worker.post(partial(self._remove, key))

    def _remove(self, key: str) -> None:
        """Runs in the worker."""
        try:
            self._parts.files.remove(key)
        except FilesError as error:
            _LOG.warning(Line("files stay until the next sweep", key=key, error=error))

    def _report(self, strays: Sequence[tuple[Stray, Running]]) -> None:
        for stray, one in strays:
            if stray is Stray.NOT_ADJUSTED:
                text = f'container "{one.name}" runs without its GPU: {_MISSED}'
                self._parts.notices.add(Notice(one.pod, one.name, names.EVENT_WITHOUT_GPU, text))
            _LOG.error(Line(recovery.ADVICE[stray], **one.pod.log_fields(one.name, one.id)))
        for stray in Stray:
            count = sum(kind is stray for kind, _ in strays)
            self._parts.metrics.strays.labels(stray.value).set(count)


async def sweep(
    files: RunDirectory,
    worker: Worker,
    deadline_s: float,
    users: Callable[[], AbstractContainer[str]],
) -> None:
    """Remove the directories that no container uses. users: the keys in use now, which may change
    between two removals. worker: the one that also creates directories, in order."""
    removed = stay = 0
    try:
        for key in sorted(await worker.run(files.keys, deadline_s)):
            if key in users():
                continue
            try:
                await worker.run(partial(files.remove, key), deadline_s)
                removed += 1
            except (FilesError, TimeoutError) as error:
                stay += 1
                text = "unused directory remains until the next sweep"
                _LOG.warning(Line(text, key=key, error=repr(error)))
    except (OSError, TimeoutError) as error:
        _LOG.warning(Line("the run directory cannot be swept", error=repr(error)))
    if removed or stay:
        _LOG.info(Line("unused directories removed", removed=removed, stay=stay))
