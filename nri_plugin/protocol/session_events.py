"""The events of an NRI session: the runtime's requests as values.

No behaviour and no bytes. session.py creates them; nri_plugin.nri.connection handles them. Pods and
containers are the protobuf messages themselves.
Invariant: a Request must be answered exactly once, by its `request_id`, within `budget_ms`;
otherwise the runtime drops the plugin.
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
"""The events of NRI 0.2 to 0.9; with any other bit the runtime rejects the plugin."""

EVENTS_SINCE_0_10: Final = EventMask(0x3FFF)

SERVED_EVENTS: Final = (
    EventMask.CREATE_CONTAINER
    | EventMask.START_CONTAINER
    | EventMask.STOP_CONTAINER
    | EventMask.REMOVE_CONTAINER
    | EventMask.VALIDATE_CONTAINER_ADJUSTMENT
)
"""The events that a session can pass on, and the agent's subscription. Others are answered empty,
and are not subscribed to, because the failure policy covers every subscribed event."""


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
    """Empty if the runtime does not report it: NRI 0.11 and earlier."""
    request_timeout_ms: int
    """The runtime's timeout for each answer; for Synchronize, for all chunks together."""


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
    """The runtime shuts down; the session is closed once the answer is sent."""


@dataclass(frozen=True, slots=True)
class Request:
    """Base of events that must be answered."""

    request_id: int
    budget_ms: int
    """The runtime's timeout, from the request's arrival; answer well before it."""


@dataclass(frozen=True, slots=True)
class Synchronize(Request):
    """All pods and containers of the runtime, chunks joined. After a success, events follow.
    Stopped containers and pods in an unknown state are not included."""

    pods: Sequence[nri.PodSandbox]
    containers: Sequence[nri.Container]


@dataclass(frozen=True, slots=True)
class ContainerRequest(Request):
    """Base of events about one container."""

    pod: nri.PodSandbox
    container: nri.Container


@dataclass(frozen=True, slots=True)
class CreateContainer(ContainerRequest):
    """The container's OCI spec is complete but for our adjustment. An error fails its creation."""


@dataclass(frozen=True, slots=True)
class StartContainer(ContainerRequest):
    """The container is created and its rootfs mounted. An error fails its start."""


@dataclass(frozen=True, slots=True)
class StopContainer(ContainerRequest):
    """The container exited or was killed; also sent to undo a failed creation."""


@dataclass(frozen=True, slots=True)
class RemoveContainer(ContainerRequest):
    """The container was removed."""


@dataclass(frozen=True, slots=True)
class Validate(Request):
    """The combined adjustment of all plugins; an error rejects the container."""

    request: nri.ValidateContainerAdjustmentRequest


Event = Registered | Configured | ShutDown | Request
