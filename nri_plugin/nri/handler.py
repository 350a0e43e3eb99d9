"""Interface of the request handler: one method per request of the runtime.

service.py implements it; answers.py calls it and enforces the deadlines.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from nri_plugin.messages import nri_pb2 as nri

_T = TypeVar("_T")

Answer: TypeAlias = _T | Coroutine[Any, Any, _T]
"""The result itself if there is nothing to wait for, which saves a task; else a coroutine."""


class Handler(Protocol):
    """Handles the events. One method is called per request; a coroutine runs as a task.

    Raise policy.refusals.Refused to send the runtime a reason that users read; any other exception
    is a bug, logged with its traceback and answered as an error too. Work that exceeds its deadline
    is answered with an error and cancelled. Never wait for anything that may hang (NVML, a tenant's
    file, the API server): the answer delays every container of the node.
    """

    def synchronize(
        self, pods: Sequence[nri.PodSandbox], containers: Sequence[nri.Container]
    ) -> Answer[None]:
        """Take over what runs. Called once, before anything else; raising ends the session."""

    def create_container(
        self, pod: nri.PodSandbox, container: nri.Container
    ) -> Answer[nri.CreateContainerResponse | None]:
        """Return the reply, None for an empty one. On Refused the container is not created.

        Must be idempotent, and must leave nothing that stop and remove do not undo: the runtime
        sends these for a container whose creation failed, here or in a later plugin.
        """

    def start_container(self, pod: nri.PodSandbox, container: nri.Container) -> Answer[None]:
        """The container is created and its rootfs mounted. On Refused it does not start."""

    def stop_container(self, pod: nri.PodSandbox, container: nri.Container) -> Answer[None]:
        """The container has stopped. The runtime only logs exceptions."""

    def remove_container(self, pod: nri.PodSandbox, container: nri.Container) -> Answer[None]:
        """The container was removed. The runtime only logs exceptions."""

    def validate(self, request: nri.ValidateContainerAdjustmentRequest) -> Answer[None]:
        """Check the combined adjustment of all plugins; raise Refused to reject the container.

        Every creation is validated; answer directly if the host need not be inspected.
        """
