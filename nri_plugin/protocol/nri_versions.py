"""Tables of NRI's protocol: the Plugin service's methods, StateChange, the known events.

Only `known_events` depends on the runtime's version (see runtimes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import Message

from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.protocol import runtimes, session_events
from nri_plugin.protocol.session_events import EventMask

PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"

NRI_VERSION: Final = "v0.12.5"
"""The NRI version that we implement. The runtime logs it."""

EventMaker = Callable[[int, int, Any], session_events.Request]
"""Makes an event from the request's id, its budget in ms and the decoded request."""


@dataclass(frozen=True, slots=True)
class Method:
    """One method of the Plugin service. event: None if the session answers the call itself."""

    request: type[Message]
    response: type[Message]
    event: EventMaker | None = None


def _of_container(kind: type[session_events.ContainerRequest]) -> EventMaker:
    return lambda request_id, budget_ms, message: kind(
        request_id, budget_ms, message.pod, message.container
    )


_UNSERVED: Final = (
    *("RunPodSandbox", "UpdatePodSandbox", "PostUpdatePodSandbox"),
    *("StopPodSandbox", "RemovePodSandbox", "PostCreateContainer", "PostStartContainer"),
    *("UpdateContainer", "PostUpdateContainer"),
)
"""Methods of events that we do not subscribe to. A call gets an empty answer."""

METHODS: Final[Mapping[str, Method]] = {
    "Configure": Method(nri.ConfigureRequest, nri.ConfigureResponse),
    "Synchronize": Method(nri.SynchronizeRequest, nri.SynchronizeResponse),
    "Shutdown": Method(nri.Empty, nri.Empty),
    "StateChange": Method(nri.StateChangeEvent, nri.Empty),
    **{
        kind.__name__: Method(
            getattr(nri, f"{kind.__name__}Request"),
            getattr(nri, f"{kind.__name__}Response"),
            _of_container(kind),
        )
        for kind in session_events.ContainerRequest.__subclasses__()
    },
    "ValidateContainerAdjustment": Method(
        nri.ValidateContainerAdjustmentRequest,
        nri.ValidateContainerAdjustmentResponse,
        session_events.Validate,
    ),
    **dict.fromkeys(_UNSERVED, Method(nri.Empty, nri.Empty)),
}

STATE_CHANGES: Final[Mapping[int, EventMaker]] = {
    nri.START_CONTAINER: _of_container(session_events.StartContainer),
    nri.REMOVE_CONTAINER: _of_container(session_events.RemoveContainer),
}
"""The subscribed events that NRI 0.11 and earlier send by the method StateChange. In all versions
each other subscribed event has its own method."""


def known_events(runtime: session_events.RuntimeInfo) -> EventMask:
    """Return the events that this runtime knows. It rejects subscriptions to other events."""
    nri_version = runtimes.nri_of(runtime)
    if nri_version is not None and nri_version >= runtimes.VALIDATION:
        return session_events.EVENTS_SINCE_0_10
    return session_events.EVENTS_BEFORE_0_10
