"""The events of an NRI session: the runtime's requests as values.

session.py creates the events, and nri_plugin.nri.connection handles them. They contain pods and
containers as protobuf messages.
Invariant: a Request is answered exactly once, by its `request_id`, within `budget_ms`. Without an
answer the runtime drops the plugin.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nri_plugin.messages import nri_pb2 as nri


class EventMask(enum.IntFlag):
    """NRI's events as bits: 1 << (number - 1). To subscribe to 0 would mean all events."""

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
"""The events of NRI 0.2 to 0.9. These versions reject a plugin that subscribes to others."""

EVENTS_SINCE_0_10: Final = EventMask(0x3FFF)

SERVED_EVENTS: Final = (
    EventMask.CREATE_CONTAINER
    | EventMask.START_CONTAINER
    | EventMask.STOP_CONTAINER
    | EventMask.REMOVE_CONTAINER
    | EventMask.VALIDATE_CONTAINER_ADJUSTMENT
)
"""The events that the agent subscribes to. It subscribes to no others, because a late answer to any
subscribed event fails the request (see FAILURE_POLICY in session.py)."""


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
    """The runtime's identity, from Configure."""

    name: str
    version: str
    nri_version: str
    """The reported NRI version. "": the runtime does not report it (NRI 0.11 and earlier)."""
    request_timeout_ms: int
    """The runtime's timeout for one answer. All chunks of Synchronize share one timeout."""


@dataclass(frozen=True, slots=True)
class Registered:
    """The runtime accepted our name and index. May arrive after Configured."""


@dataclass(frozen=True, slots=True)
class Configured:
    """The runtime sent its identity, and we sent our subscription."""

    runtime: RuntimeInfo
    events: EventMask


@dataclass(frozen=True, slots=True)
class ShutDown:
    """The runtime shuts down. The session is closed after the answer is sent."""


@dataclass(frozen=True, slots=True)
class Request:
    """Base of events that must be answered."""

    request_id: int
    budget_ms: int
    """The runtime's timeout, counted from the request's arrival. The answer must come earlier."""


@dataclass(frozen=True, slots=True)
class Synchronize(Request):
    """All pods and containers of the runtime, joined from all chunks. Stopped containers and pods
    in an unknown state are not included. After a successful answer other events follow."""

    pods: Sequence[nri.PodSandbox]
    containers: Sequence[nri.Container]


@dataclass(frozen=True, slots=True)
class ContainerRequest(Request):
    """Base of events about one container."""

    pod: nri.PodSandbox
    container: nri.Container


@dataclass(frozen=True, slots=True)
class CreateContainer(ContainerRequest):
    """The runtime asks for our adjustment of a container. An error fails the creation."""


@dataclass(frozen=True, slots=True)
class StartContainer(ContainerRequest):
    """The container is created and its rootfs is mounted. An error fails its start."""


@dataclass(frozen=True, slots=True)
class StopContainer(ContainerRequest):
    """The container exited or was killed, or its creation failed."""


@dataclass(frozen=True, slots=True)
class RemoveContainer(ContainerRequest):
    """The container was removed."""


@dataclass(frozen=True, slots=True)
class Validate(Request):
    """The combined adjustment of all plugins. An error rejects the container."""

    request: nri.ValidateContainerAdjustmentRequest


Event = Registered | Configured | ShutDown | Request
