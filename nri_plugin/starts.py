"""What is done at StartContainer: the container stands, its root file system mounted, and waits.

A container with a share is looked at, gets the image's own preloads behind ours, and is proven once
it runs; one without, in the same pod, is looked at for what its volumes show. Raises Refused where
it must not start. Holds nothing of any container: what must be in place is read from its mounts,
which the runtime keeps, so that an agent that has just been started knows as much.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from contract import names
from contract.log_lines import Line
from nri_plugin import places, policy, rootfs, translate
from nri_plugin.errors import FilesError, Reason, Refused, refuse
from nri_plugin.files import RunDirectory
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.metrics import Metrics
from nri_plugin.model import Mount, Pod
from nri_plugin.notices import Notice, Notices
from nri_plugin.proofs import Beside, Proofs, Started
from nri_plugin.settings import Settings
from nri_plugin.threads import Crew, Worker, in_time

_LOG: Final = logging.getLogger(__name__)

_LOOKS_AT_ONCE: Final = 8


class Starts:
    """worker: the one that does all work on `files`."""

    def __init__(
        self,
        settings: Settings,
        files: RunDirectory,
        worker: Worker,
        metrics: Metrics,
        notices: Notices,
    ) -> None:
        self._notices = notices
        self._settings = settings
        self._files = files
        self._worker = worker
        self._metrics = metrics
        self._kept = rootfs.Kept(settings.run_dir, settings.store_dir, settings.nri_socket)
        self._looks = Crew("look", _LOOKS_AT_ONCE)
        self._proofs = Proofs(
            settings.containerd_state,
            self._kept,
            metrics,
            settings.work_deadline_s,
            settings.rules.capabilities,
            notices,
        )

    def close(self) -> None:
        """Prove nothing more."""
        self._proofs.stop()

    async def settled(self) -> None:
        """When all that was to be proven is."""
        await self._proofs.settled()

    async def with_share(self, pod: Pod, container: nri.Container, key: str) -> None:
        """key: of the grant's files that the container has mounted."""
        standing = self._standing(container, key)
        if standing is None:
            raise Refused(refuse(Reason.NOT_ADJUSTED))
        found = await in_time("look at the container", self._look(container.id, standing))
        await self._add_preloads(key, found.preloads, standing)
        if found.out_of_reach:
            self._out_of_reach(pod, container, found.out_of_reach)
        self._proofs.begin(Started(pod, container.name, container.id, standing, found.waits_in))

    async def without_share(self, container_id: str) -> None:
        """In a pod of ours: it may show the limits of others, or take them away."""
        work = self._looks.run(self._beside(container_id), self._settings.work_deadline_s)
        await in_time("look at the container", work)

    async def bystander(self, pod: Pod, container: nri.Container) -> None:
        """Of a pod that says nothing to us. What cannot be looked at starts: it has no card."""
        if not self._is_asked(pod, container):
            return
        try:
            await self._looks.run(self._bystands(container.id), self._settings.work_deadline_s)
        except (OSError, ValueError) as error:  # TimeoutError is one
            _LOG.warning(
                Line(
                    "container without a share not looked at",
                    namespace=pod.namespace,
                    pod=pod.name,
                    container=container.name,
                    container_id=container.id,
                    problem=repr(error),
                )
            )

    def _beside(self, container_id: str) -> Callable[[], None]:
        state, allowed = self._settings.containerd_state, self._settings.rules.capabilities
        return partial(rootfs.examine_without_share, state, container_id, self._kept, allowed)

    def _bystands(self, container_id: str) -> Callable[[], None]:
        state = self._settings.containerd_state
        return partial(rootfs.check_bystander, state, container_id, self._kept)

    def _is_asked(self, pod: Pod, container: nri.Container) -> bool:
        rules, everything = self._settings.rules, translate.container(container).privileged
        trusted = pod.namespace in self._settings.trusted_namespaces
        return not (trusted or everything) and pod.runtime_handler in rules.runtime_handlers

    def running(self, pod: Pod, container: nri.Container, key: str) -> None:
        """One with a share that was started before this session; returns at once."""
        standing = self._standing(container, key)
        self._proofs.begin(Started(pod, container.name, container.id, standing))

    def running_without(self, pod: Pod, container: nri.Container) -> None:
        """One without, that was; nobody may have looked at its start. Returns at once."""
        if policy.wants_card(pod):
            look = self._beside(container.id)
        elif self._is_asked(pod, container):
            look = self._bystands(container.id)
        else:
            return
        self._proofs.begin_beside(Beside(pod, container.name, container.id, look))

    def _standing(self, container: nri.Container, key: str) -> Sequence[Mount] | None:
        """What must be in place in a container for its limit to hold; None: not all is mounted."""
        directory, store_dir = f"{self._settings.run_dir}/{key}", str(self._settings.store_dir)
        return places.in_place(translate.mounts(container.mounts), directory, store_dir)

    async def _look(self, container_id: str, mounts: Sequence[Mount]) -> rootfs.Found:
        state, forwarded = self._settings.containerd_state, self._settings.strict
        allowed = self._settings.rules.capabilities
        job = partial(rootfs.examine, state, container_id, mounts, self._kept, forwarded, allowed)
        return await self._looks.run(job, self._settings.work_deadline_s)

    async def _add_preloads(
        self, key: str, preloads: Mapping[str, Sequence[bytes]], standing: Sequence[Mount]
    ) -> None:
        """The image's own preloaded libraries go behind ours, in the container's own lists."""
        if preloads:
            files = {mount.destination: posixpath.basename(mount.source) for mount in standing}
            job = partial(self._files.add_preloads, key, preloads, files)
            work = self._worker.run(job, self._settings.work_deadline_s)
            try:
                await in_time("write the container's preload file", work)
            except FilesError as error:
                raise Refused(refuse(Reason.FILES_FAILED, problem=error)) from error

    def _out_of_reach(self, pod: Pod, container: nri.Container, problem: str) -> None:
        if self._settings.refuse_unenforceable:
            raise Refused(refuse(Reason.LIMIT_NOT_ENFORCEABLE, problem=problem))
        self._metrics.not_enforceable.inc()
        text = f'container "{container.name}" starts, but its limit may not reach it: {problem}'
        reason = names.EVENT_LIMIT_NOT_ENFORCEABLE
        self._notices.add(Notice(pod, container.name, reason, text))
        _LOG.warning(
            Line(
                names.EVENT_LIMIT_NOT_ENFORCEABLE,
                namespace=pod.namespace,
                pod=pod.name,
                uid=pod.uid,
                container=container.name,
                container_id=container.id,
                problem=problem,
            )
        )
