"""The vocabulary between the dialogue and whoever serves it: what the runtime asks, as values.

Holds no behaviour and no bytes; made by session.py, read by nri_plugin.connection. Pods and
containers are the protobuf messages themselves. A Request must be answered exactly once, by its
`request_id`, within `budget_ms`, or the runtime takes us for dead.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nri_plugin.messages import nri_pb2 as nri


class EventMask(enum.IntFlag):
    """Events to subscribe to; the bit is 1 << (number - 1). Zero on the wire would mean all."""

    RUN_POD_SANDBOX = 0x1
    STOP_POD_SANDBOX = 0x2
    REMOVE_POD_SANDBOX = 0x4
    CREATE_CONTAINER = 0x8
    POST_CREATE_CONTAINER = 0x10
    START_CONTAINER = 0x20
    POST_START_CONTAINER = 0x40
    UPDATE_CONTAINER = 0x80
    POST_UPDATE_CONTAINER = 0x100
    STOP_CONTAINER = 0x200
    REMOVE_CONTAINER = 0x400
    UPDATE_POD_SANDBOX = 0x800
    POST_UPDATE_POD_SANDBOX = 0x1000
    VALIDATE_CONTAINER_ADJUSTMENT = 0x2000


EVENTS_BEFORE_0_10: Final = EventMask(0x7FF)
"""What NRI 0.2 to 0.9 knows; one bit more and the runtime refuses the plugin."""

EVENTS_SINCE_0_10: Final = EventMask(0x3FFF)

SERVED_EVENTS: Final = (
    EventMask.CREATE_CONTAINER
    | EventMask.START_CONTAINER
    | EventMask.STOP_CONTAINER
    | EventMask.REMOVE_CONTAINER
    | EventMask.VALIDATE_CONTAINER_ADJUSTMENT
)
"""The events that a session can hand on; any other is answered empty, and should not be asked for:
the failure policy covers every subscribed event."""


class Code(enum.IntEnum):
    """The gRPC status codes that we send."""

    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """Who is at the other end, from Configure."""

    name: str
    version: str
    nri_version: str
    """Empty where the runtime does not tell: NRI 0.11 and before."""
    registration_timeout_ms: int
    request_timeout_ms: int
    """The runtime waits this long for each answer, for all chunks of a Synchronize together."""


@dataclass(frozen=True, slots=True)
class Registered:
    """The runtime took our name and index. May come after Configured."""


@dataclass(frozen=True, slots=True)
class Configured:
    """The runtime told who it is, and was told our subscription."""

    runtime: RuntimeInfo
    events: EventMask


@dataclass(frozen=True, slots=True)
class ShutDown:
    """The runtime said good-bye; the session is closed once the answer is sent."""


@dataclass(frozen=True, slots=True)
class Request:
    """Base of what must be answered."""

    request_id: int
    budget_ms: int
    """The runtime's patience, from the arrival of the request; answer well before."""


@dataclass(frozen=True, slots=True)
class Synchronize(Request):
    """Everything the runtime runs, all chunks joined. Answered well, events start to flow.

    Stopped containers and pods in an unknown state are not in it.
    """

    pods: Sequence[nri.PodSandbox]
    containers: Sequence[nri.Container]


@dataclass(frozen=True, slots=True)
class ContainerRequest(Request):
    """Base of what concerns one container."""

    pod: nri.PodSandbox
    container: nri.Container


@dataclass(frozen=True, slots=True)
class CreateContainer(ContainerRequest):
    """The container's OCI spec is complete but for our adjustment. An error fails its creation."""


@dataclass(frozen=True, slots=True)
class StartContainer(ContainerRequest):
    """The container stands, its rootfs mounted, and has not run yet. An error fails its start."""


@dataclass(frozen=True, slots=True)
class StopContainer(ContainerRequest):
    """The container has ended, by itself or killed; also sent to undo a failed creation."""


@dataclass(frozen=True, slots=True)
class RemoveContainer(ContainerRequest):
    """The container is forgotten."""


@dataclass(frozen=True, slots=True)
class Validate(Request):
    """What all plugins together make of a container; an error rejects it."""

    request: nri.ValidateContainerAdjustmentRequest


Event = Registered | Configured | ShutDown | Request
