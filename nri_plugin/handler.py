"""What the connection asks of whoever decides: one method per request of the runtime.

Held by service.py; asked by answers.py, which has the deadlines.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from nri_plugin.messages import nri_pb2 as nri

_T = TypeVar("_T")

Answer: TypeAlias = _T | Coroutine[Any, Any, _T]
"""At once, where nothing has to be waited for, which saves a task; else later."""


class Handler(Protocol):
    """What serves the events. One method is called per request; what it has to wait for is a task.

    Raise Refused to give the runtime a reason in the words meant for people; any other exception is
    a bug, logged with its traceback and answered as an error too. What outlives its deadline is
    answered for and cancelled. Never wait for anything that may hang (NVML, a tenant's file, the
    API server): every container of the node waits behind the answer.
    """

    def synchronize(
        self, pods: Sequence[nri.PodSandbox], containers: Sequence[nri.Container]
    ) -> Answer[None]:
        """Take over what runs. Called once, before anything else; raising ends the session."""

    def create_container(
        self, pod: nri.PodSandbox, container: nri.Container
    ) -> Answer[nri.CreateContainerResponse | None]:
        """Return the reply, None for an empty one; raise Refused and the container is not created.

        Must be idempotent, and leave nothing that stop and remove do not undo: the runtime sends
        these for a container whose creation failed, here or in a plugin after us.
        """

    def start_container(self, pod: nri.PodSandbox, container: nri.Container) -> Answer[None]:
        """Raise Refused and the container, created and with its rootfs mounted, does not start."""

    def stop_container(self, pod: nri.PodSandbox, container: nri.Container) -> Answer[None]:
        """The container has ended. What is raised is only logged by the runtime."""

    def remove_container(self, pod: nri.PodSandbox, container: nri.Container) -> Answer[None]:
        """The container is forgotten. What is raised is only logged by the runtime."""

    def validate(self, request: nri.ValidateContainerAdjustmentRequest) -> Answer[None]:
        """Look at what all plugins made together; raise Refused to reject the container.

        Every creation is validated: what needs no look at the host is answered at once.
        """


class Refused(Exception):
    """A request denied on purpose; `reason` reaches the user through the runtime, word for word.

    code: the reason's short name, for counting.
    """

    def __init__(self, reason: str, code: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
