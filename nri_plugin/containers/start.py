"""Checks a created container before its program starts; its root file system is mounted.

The image's own preloads are appended to those of a container with a share, and once it runs it is
verified; Refused is raised if it must not start. A container without a share in the same pod always
starts.
Keeps no state per container: what must be mounted is read from its mounts, which the runtime keeps,
and from the record beside its grant, so that a restarted agent obtains the same result.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from contract import names
from kube.log_lines import Line
from nri_plugin.host import rootfs, selinux
from nri_plugin.host.files import RunDirectory
from nri_plugin.host.runtime_verification import Proofs, Started
from nri_plugin.metrics import Metrics
from nri_plugin.policy import required_mounts
from nri_plugin.policy.model import Container, Mount, Pod
from nri_plugin.policy.notices import Notice, Notices
from nri_plugin.policy.refusals import FilesError, Reason, Refused, refused
from nri_plugin.settings import Settings
from nri_plugin.threads import ThreadPool, Worker, in_time

_LOG: Final = logging.getLogger(__name__)

_AT_ONCE: Final = 256
"""More than a node has pods (the kubelet's default is 110), so that each finds a slot."""
_OF_A_POD: Final = 1
"""A hung inspection keeps its slot, and retries of its pod fail at once. The kubelet starts a pod's
containers one after the other."""


class ContainerStart:
    """worker: the one that does all work on `files`. driver_seen: as in rootfs.Kept."""

    def __init__(
        self,
        settings: Settings,
        files: RunDirectory,
        worker: Worker,
        metrics: Metrics,
        notices: Notices,
        driver_seen: Callable[[str], Path],
    ) -> None:
        self._verifying: asyncio.Task[None] | None = None
        self._notices = notices
        self._settings = settings
        self._files = files
        self._worker = worker
        self._metrics = metrics
        self._kept = rootfs.Kept(
            settings.run_dir,
            settings.store_dir,
            settings.nri_socket,
            driver_seen,
            selinux.Policy(settings.host_root),
        )
        self._threads = ThreadPool("inspection", _AT_ONCE, _OF_A_POD)
        self._proofs = Proofs(
            settings.containerd_state,
            self._kept,
            metrics,
            settings.work_deadline_s,
            settings.rules.capabilities,
            notices,
        )

    def close(self) -> None:
        """Stop the verification of running containers."""
        if self._verifying is not None:
            self._verifying.cancel()
        self._proofs.stop()

    async def settled(self) -> None:
        """Wait until all started verifications have ended."""
        if self._verifying is not None:
            await asyncio.wait([self._verifying])
        await self._proofs.settled()

    async def with_share(self, pod: Pod, container: Container, key: str) -> None:
        """key: of the grant's files that the container has mounted."""
        required = await in_time("read the container's files", self._required(container, key))
        if required is None:
            raise refused(Reason.NOT_ADJUSTED)
        found = await in_time("inspect the container", self._inspect(pod, container.id, required))
        await self._add_preloads(key, found.preloads, required)
        if found.out_of_reach:
            self._out_of_reach(pod, container, found.out_of_reach)
        self._proofs.begin(Started(pod, container.name, container.id, required, found.waits_in))

    async def without_share(self, pod: Pod, container: Container) -> None:
        """Start a container that its pod's grant does not name. An event reports what it can do to
        the limits of the other containers."""
        settings = self._settings
        state, allowed = settings.containerd_state, settings.rules.capabilities
        job = partial(rootfs.strong_beside, state, container.id, allowed)
        try:
            name = await self._threads.run(job, settings.work_deadline_s, pod.uid)
        except (OSError, ValueError, RuntimeError) as error:  # a timeout; no thread can be started
            self._warn("container without a share not inspected", pod, container, repr(error))
            return
        if name:
            problem = (
                f"with capability {name} and a shared process namespace it can undo the limits of"
                " the pod's other containers"
            )
            self._not_enforceable(pod, container, problem)

    def verify(self, running: Sequence[tuple[Pod, Container, str]]) -> None:
        """Verify containers with a share that were started before this session; returns at once.
        By container, the key of its files."""
        if self._verifying is not None:
            self._verifying.cancel()
        self._verifying = asyncio.create_task(self._verify(running), name="verify what runs")

    async def _verify(self, running: Sequence[tuple[Pod, Container, str]]) -> None:
        for pod, container, key in running:
            try:
                required = await self._required(container, key)
            except (TimeoutError, Refused) as error:  # its state is unknown: nothing is reported
                self._warn("limit not checked", pod, container, str(error) or "timeout")
                continue
            self._proofs.begin(Started(pod, container.name, container.id, required))

    async def _required(self, container: Container, key: str) -> Sequence[Mount] | None:
        """Return what must be mounted in a container to enforce its limit; None: its own mounts
        lack a part. Raises TimeoutError."""
        directory, store_dir = f"{self._settings.run_dir}/{key}", str(self._settings.store_dir)
        job = partial(self._files.recorded, key, container.name)
        recorded = await self._worker.run(job, self._settings.work_deadline_s)
        mounts = container.mounts
        return required_mounts.in_place(mounts, directory, store_dir, recorded)

    async def _inspect(self, pod: Pod, container_id: str, mounts: Sequence[Mount]) -> rootfs.Found:
        state, forwarded = self._settings.containerd_state, self._settings.strict
        allowed = self._settings.rules.capabilities
        job = partial(rootfs.examine, state, container_id, mounts, self._kept, forwarded, allowed)
        return await self._threads.run(job, self._settings.work_deadline_s, pod.uid)

    async def _add_preloads(
        self, key: str, preloads: Mapping[str, Sequence[bytes]], required: Sequence[Mount]
    ) -> None:
        """Append the image's own preloaded libraries to ours, in the container's own lists."""
        if preloads:
            files = {mount.destination: posixpath.basename(mount.source) for mount in required}
            job = partial(self._files.add_preloads, key, preloads, files)
            work = self._worker.run(job, self._settings.work_deadline_s)
            try:
                await in_time("write the container's preload file", work)
            except FilesError as error:
                raise refused(Reason.FILES_FAILED, problem=error) from error

    def _out_of_reach(self, pod: Pod, container: Container, problem: str) -> None:
        if self._settings.refuse_unenforceable:
            raise refused(Reason.LIMIT_NOT_ENFORCEABLE, problem=problem)
        self._not_enforceable(pod, container, f"its limit may not reach it: {problem}")

    def _not_enforceable(self, pod: Pod, container: Container, problem: str) -> None:
        self._metrics.not_enforceable.inc()
        reason = names.EVENT_LIMIT_NOT_ENFORCEABLE
        text = f'container "{container.name}" starts, but {problem}'
        self._notices.add(Notice(pod, container.name, reason, text))
        self._warn(reason, pod, container, problem)

    def _warn(self, text: str, pod: Pod, container: Container, problem: str) -> None:
        _LOG.warning(
            Line(
                text,
                **pod.log_fields,
                container=container.name,
                container_id=container.id,
                problem=problem,
            )
        )
