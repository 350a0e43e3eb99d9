"""The state of this node's containers: their plans, the users of grants' files, and the ledger.

`take_over` rebuilds this state from the runtime's list of containers at every Synchronize. One
worker creates, reads and removes the files, in the order of the requests. All other changes happen
on the event loop, without interruption.

After a crash a thousand directories may have no user, and each removal takes milliseconds. A sweep
removes each in a separate job. Therefore a container waits for at most one removal.
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
    """worker: the thread that does all work on the files. modes: the modes of the node's GPUs."""

    def __init__(self, parts: Parts, worker: Worker, modes: GpuModes) -> None:
        self._parts = parts
        self._settings = parts.settings
        self._modes = modes
        self._worker = worker
        self.plans: dict[str, ContainerPlan] = {}
        """The plans of containers whose creation was answered and that have not started yet."""
        self._users: dict[str, set[str]] = {}
        self._unreported: dict[str, str] = {}
        """Container ID -> key of its files, for containers whose creation an earlier session
        answered and that the runtime has not reported since."""
        self.ledger = parts.ledger
        self._sweeping: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()

    async def settled(self) -> None:
        if self._sweeping is not None:
            await asyncio.wait({self._sweeping})

    def _sweep(self) -> None:
        """Start a new sweep, which removes the directories that no container uses."""
        self.close()
        files, deadline_s = self._parts.files, self._settings.work_deadline_s
        work = sweep(files, self._worker, deadline_s, lambda: self._users)
        self._sweeping = asyncio.create_task(work, name="sweep")

    async def take_over(self, running: Sequence[Running], gpus: Sequence[Gpu]) -> None:
        """Rebuild the state from the listed containers. Raises TimeoutError if the files cannot be
        read in time."""
        keys = {one.key for one in running if one.key is not None}
        job = partial(self._parts.files.grants, keys)
        grants = await self._worker.run(job, self._settings.work_deadline_s)
        state = recovery.survey(running, grants, gpus, self._parts.claims, self._modes.pods)
        self._users = {key: set(ids) for key, ids in state.users.items()}
        # A container whose creation was just answered may not be listed yet. Its record is kept.
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
        """Enter the container's share in the ledger, and record that it uses the files of `key`.
        Raises Refused if the GPUs or the pod's allocation lack free capacity, if a pod holds one of
        the GPUs whole, or if the API server's data contradicts the grant.

        If the creation fails, call `not_made`. Work on the files can continue after a timeout, so
        they are removed only after that work.
        """
        objection = self._parts.bound_pods.objection(
            pod, gpus, self.ledger.pod_uids()
        ) or self._modes.objection(share.uuid for share in claim.shares)
        if objection is not None:
            raise Refused(objection)
        hold = ledger.hold(container.id, key, pod, container.name, claim.shares)
        refusal = self.ledger.take(hold, gpus, ledger.parts(claim.allocated))
        if refusal is not None:
            raise Refused(refusal)
        self._unreported.pop(container.id, None)
        self._users.setdefault(key, set()).add(container.id)

    def _drop_unreported(self, container_ids: AbstractSet[str]) -> None:
        """Drop the containers of `container_ids` that the runtime still has not reported. A killed
        runtime never reports the removal of a container that had not started."""
        unreported = container_ids & self._unreported.keys()
        for container_id in unreported:
            self.ledger.drop(container_id)
            self._leaves(container_id, self._unreported.pop(container_id))
        if unreported:
            self._sweep()

    def _leaves(self, container_id: str, key: str) -> bool:
        """Record that the container no longer uses the files of `key`. Return whether these files
        have no user left."""
        users = self._users.get(key, set())
        users.discard(container_id)
        if not users:
            self._users.pop(key, None)
        return not users

    def starts(self, container_id: str) -> ContainerPlan | None:
        """Return the plan of a container that starts. None: another session answered its creation,
        or it has no plan."""
        self._unreported.pop(container_id, None)
        return self.plans.pop(container_id, None)

    async def removed(self, container_id: str, mounted: str | None) -> None:
        """Drop a removed container, and remove its files if no other container uses them. mounted:
        the key of the files that it mounted."""
        self.ledger.drop(container_id)
        self._unreported.pop(container_id, None)
        plan = self.plans.pop(container_id, None)
        key = mounted or (plan and plan.key)
        if key:
            own = None if self._leaves(container_id, key) else container_id
            job = partial(self._remove, key, own)
            with suppress(TimeoutError):
                await self._worker.run(job, self._settings.work_deadline_s)

    def not_made(self, container_id: str, key: str) -> None:
        """Drop a container whose creation failed. The worker removes its files after its earlier
        jobs. One of them may have timed out, and still write these files."""
        self.ledger.drop(container_id)
        own = None if self._leaves(container_id, key) else container_id
        self._worker.post(partial(self._remove, key, own))

    def _remove(self, key: str, own: str | None) -> None:
        try:
            self._parts.files.remove(key, own)
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
    """Remove the directories that no container uses. users: returns the keys in use, and is called
    before each removal. worker: the thread that also creates the directories."""
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
