"""The plugin's side of an NRI session: register, be configured, synchronize, serve.

Rule 1: only TRANSITIONS decides whether a message is allowed in a state, and the next state.
Rule 2: every request is answered exactly once. The session answers a request that causes no event.
Rule 3: a request that is out of turn, unknown or undecodable gets an error status, and the session
continues. An error only fails the request. Without a connection the container would run without
its adjustment.

nri_plugin.nri.connection has the socket and the clock. After every call it must send what
data_to_send() returns. The events are the same for all versions of NRI.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from google.protobuf.message import DecodeError, Message

from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.protocol import mux, nri_versions, runtimes, session_events, ttrpc
from nri_plugin.protocol.errors import LocalProtocolError, RegistrationRejected
from nri_plugin.protocol.nri_versions import METHODS, PLUGIN_SERVICE, RUNTIME_SERVICE, STATE_CHANGES
from nri_plugin.protocol.session_events import Code, EventMask

SYNCHRONIZE_LIMIT_BYTES: Final = 256 << 20
"""Limit of all chunks of a Synchronize together. 300 large containers take 7 MB."""

DEFAULT_REGISTRATION_TIMEOUT_MS: Final = 5000
DEFAULT_REQUEST_TIMEOUT_MS: Final = 2000
"""The timeout of a runtime that does not report its timeout (NRI before 0.7)."""

FAILURE_POLICY: Final = nri.FailurePolicy(fail_request=True, keep_connected=False)
"""The policy for a request that we do not answer in time: the request fails, and the runtime drops
us. Later pods without a grant start without us. Pods with a grant require our plugin by an
annotation, and fail. We always send this policy. Runtimes before NRI 0.12.4 ignore it."""


class State(enum.Enum):
    """The session's progress. The reply to RegisterPlugin is not a state, because it may arrive in
    any state."""

    UNCONFIGURED = enum.auto()
    CONFIGURED = enum.auto()
    COLLECTING = enum.auto()
    """Chunks of Synchronize are arriving."""
    ADOPTING = enum.auto()
    """All chunks have arrived, and the caller has not answered Synchronize yet."""
    SERVING = enum.auto()
    CLOSED = enum.auto()


class Input(enum.Enum):
    CONFIGURE = enum.auto()
    CHUNK = enum.auto()
    LAST_CHUNK = enum.auto()
    ADOPTED = enum.auto()
    NOT_ADOPTED = enum.auto()
    NOT_SERVED = enum.auto()
    """The agent does not serve this runtime."""
    CALL = enum.auto()
    SHUTDOWN = enum.auto()
    END = enum.auto()


TRANSITIONS: Final[Mapping[tuple[State, Input], State]] = {
    (State.UNCONFIGURED, Input.CONFIGURE): State.CONFIGURED,
    (State.CONFIGURED, Input.NOT_SERVED): State.CLOSED,
    (State.CONFIGURED, Input.CHUNK): State.COLLECTING,
    (State.CONFIGURED, Input.LAST_CHUNK): State.ADOPTING,
    (State.COLLECTING, Input.CHUNK): State.COLLECTING,
    (State.COLLECTING, Input.LAST_CHUNK): State.ADOPTING,
    (State.ADOPTING, Input.ADOPTED): State.SERVING,
    (State.ADOPTING, Input.NOT_ADOPTED): State.CLOSED,
    (State.SERVING, Input.CALL): State.SERVING,
    **{(state, Input.SHUTDOWN): State.CLOSED for state in State},
    **{(state, Input.END): State.CLOSED for state in State},
}


class Session:
    """One connection's session, from registration to end. A reconnect needs a new Session."""

    def __init__(
        self,
        *,
        name: str,
        index: str,
        wanted: EventMask = session_events.SERVED_EVENTS,
        registration_budget_ms: int = DEFAULT_REGISTRATION_TIMEOUT_MS,
        nri_version: str = nri_versions.NRI_VERSION,
    ) -> None:
        if not re.fullmatch(r"[0-9]{2}", index):
            raise LocalProtocolError(f"index: invalid value {index!r}: must be two digits")
        if not re.fullmatch(r"[A-Za-z0-9_.+-]+", name):
            raise LocalProtocolError(
                f"name: invalid value {name!r}: must be letters, digits or any of _.+-"
            )
        if not wanted & session_events.EVENTS_BEFORE_0_10 or wanted & ~session_events.SERVED_EVENTS:
            raise LocalProtocolError(f"the events {wanted!r} cannot be served to every runtime")
        self._registration = nri.RegisterPluginRequest(
            plugin_name=name, plugin_idx=index, nri_version=nri_version
        )
        self._registration_budget_ms = registration_budget_ms
        self._wanted = wanted
        self._state = State.UNCONFIGURED
        self._registering = False
        self._registered = False
        self._runtime: session_events.RuntimeInfo | None = None
        self.refusal: str | None = None
        """Why the session refused this runtime. None: not refused, or Configure has not arrived."""
        self._open: dict[int, type[Message]] = {}
        """The response's type for each request that the caller must still answer."""
        self._pods: list[nri.PodSandbox] = []
        self._containers: list[nri.Container] = []
        self._collected_bytes = 0
        self._events: list[session_events.Event] = []
        """The events of the current receive_data call."""
        self._demultiplexer = mux.Demultiplexer()
        self._server = ttrpc.Server()
        self._client = ttrpc.Client()

    @property
    def state(self) -> State:
        return self._state

    @property
    def closed(self) -> bool:
        """Whether the session is over. The caller must send the remaining bytes, and close."""
        return self._state is State.CLOSED

    @property
    def introduced(self) -> bool:
        """Whether the runtime has accepted our registration and sent its identity."""
        return self._registered and self._runtime is not None

    @property
    def runtime(self) -> session_events.RuntimeInfo:
        """The runtime's identity. Raises LocalProtocolError before the Configured event."""
        if self._runtime is None:
            raise LocalProtocolError("the runtime has not named itself yet")
        return self._runtime

    def register(self) -> None:
        """Send the registration. Call this once, before all other methods."""
        if self._registering:
            raise LocalProtocolError("a session registers once")
        self._registering = True
        self._client.call(
            RUNTIME_SERVICE,
            "RegisterPlugin",
            self._registration.SerializeToString(),
            self._registration_budget_ms * 1_000_000,
        )

    def receive_data(self, data: bytes) -> list[session_events.Event]:
        """Parse bytes from the runtime, which may be split anywhere. Return the events in order.

        The caller must answer every Request by respond() or fail(). Bytes that violate NRI close
        the session, and raise RemoteProtocolError. A closed session ignores all bytes.
        """
        self._events = []
        if self.closed:
            return self._events
        try:
            for connection, piece in self._demultiplexer.feed(data):
                if connection == mux.PLUGIN:
                    for call in self._server.receive_data(piece):
                        self._serve_call(call)
                elif connection == mux.RUNTIME:
                    for reply in self._client.receive_data(piece):
                        self._registration_reply(reply)
        except Exception:
            self._advance(Input.END)
            raise
        return self._events

    def receive_eof(self) -> None:
        self._advance(Input.END)

    def data_to_send(self) -> bytes:
        """Return the bytes that must be sent to the runtime, and forget them."""
        frames = [mux.frames(mux.RUNTIME, each) for each in self._client.messages_to_send()]
        frames += [mux.frames(mux.PLUGIN, each) for each in self._server.messages_to_send()]
        return b"".join(frames)

    def respond(self, request_id: int, reply: Message | None = None) -> bool:
        """Answer a Request with success. reply: None for an empty reply. If it exceeds ttrpc's
        limit, send an error, which fails the request, and return False."""
        due = self._open.get(request_id)
        if due is not None and reply is not None and not isinstance(reply, due):
            raise LocalProtocolError(f"a {type(reply).__name__} where a {due.__name__} is due")
        self._close_request(request_id, Input.ADOPTED)
        return self._server.reply(request_id, b"" if reply is None else reply.SerializeToString())

    def fail(self, request_id: int, code: Code, text: str) -> None:
        """Answer a Request with an error, which fails it. A failed Synchronize ends the session."""
        due = self._close_request(request_id, Input.NOT_ADOPTED)
        if due is nri.ValidateContainerAdjustmentResponse:
            # A validator states its rejection in a reply. The runtime takes an error status for a
            # broken plugin.
            verdict = nri.ValidateContainerAdjustmentResponse(
                reject=True, reason=ttrpc.sendable(text)
            )
            self._server.reply(request_id, verdict.SerializeToString())
        else:
            self._server.fail(request_id, code, text)

    def _close_request(self, request_id: int, verdict: Input) -> type[Message]:
        if self.closed:
            raise LocalProtocolError("the session is closed; no request waits for this answer")
        due = self._open.pop(request_id, None)
        if due is None:
            raise LocalProtocolError(f"no request {request_id} is open: answered twice?")
        if due is nri.SynchronizeResponse:
            self._advance(verdict)
        return due

    def _advance(self, step: Input) -> bool:
        """Apply a transition. Return False, and keep the state, if TRANSITIONS has none."""
        state = TRANSITIONS.get((self._state, step))
        if state is None:
            return False
        self._state = state
        return True

    # --- requests of the runtime ---------------------------------------------------------------

    def _registration_reply(self, reply: ttrpc.Reply) -> None:
        if reply.code:
            raise RegistrationRejected(reply.code, reply.text)
        self._registered = True
        self._events.append(session_events.Registered())

    def _serve_call(self, call: ttrpc.Call) -> None:
        method = METHODS.get(call.method) if call.service == PLUGIN_SERVICE else None
        if method is None:
            # NRI 0.12 retries with the method StateChange after this code only.
            text = f"{call.service}.{call.method} is not served here"
            self._server.fail(call.stream, Code.UNIMPLEMENTED, text)
            return
        try:
            message = method.request.FromString(call.payload)
        except DecodeError as error:
            text = f"the {method.request.__name__} cannot be decoded: {error}"
            self._server.fail(call.stream, Code.INVALID_ARGUMENT, text)
            return
        if (handle := _HANDLERS.get(call.method)) is not None:
            handle(self, call, message)
        else:
            self._ask(call, method.response, method.event, message)

    def _configure(self, call: ttrpc.Call, message: nri.ConfigureRequest) -> None:
        if not self._in_turn(call, Input.CONFIGURE):
            return
        self._runtime = session_events.RuntimeInfo(
            name=message.runtime_name,
            version=message.runtime_version,
            nri_version=message.nri_version,
            request_timeout_ms=max(0, message.request_timeout) or DEFAULT_REQUEST_TIMEOUT_MS,
        )
        self.refusal = runtimes.refusal(self._runtime)
        if self.refusal is not None:
            self._server.fail(call.stream, Code.FAILED_PRECONDITION, self.refusal)
            self._advance(Input.NOT_SERVED)
            return
        subscribed = self._wanted & nri_versions.known_events(self._runtime)
        response = nri.ConfigureResponse(events=int(subscribed), failure_policy=FAILURE_POLICY)
        self._server.reply(call.stream, response.SerializeToString())
        self._events.append(session_events.Configured(self._runtime, subscribed))

    def _synchronize(self, call: ttrpc.Call, message: nri.SynchronizeRequest) -> None:
        self._collected_bytes += len(call.payload)
        if self._collected_bytes > SYNCHRONIZE_LIMIT_BYTES:
            text = f"more than {SYNCHRONIZE_LIMIT_BYTES} bytes of pods and containers"
            self._server.fail(call.stream, Code.RESOURCE_EXHAUSTED, text)
            return
        if not self._in_turn(call, Input.CHUNK if message.more else Input.LAST_CHUNK):
            return
        self._pods += message.pods
        self._containers += message.containers
        if message.more:
            response = nri.SynchronizeResponse(more=True)
            self._server.reply(call.stream, response.SerializeToString())
            return
        self._open[call.stream] = nri.SynchronizeResponse
        budget_ms = self._budget_ms(call)
        pods, containers = tuple(self._pods), tuple(self._containers)
        self._events.append(session_events.Synchronize(call.stream, budget_ms, pods, containers))
        self._pods, self._containers = [], []

    def _shutdown(self, call: ttrpc.Call, message: nri.Empty) -> None:
        self._server.reply(call.stream, b"")
        self._advance(Input.SHUTDOWN)
        self._events.append(session_events.ShutDown())

    def _state_change(self, call: ttrpc.Call, message: nri.StateChangeEvent) -> None:
        self._ask(call, nri.Empty, STATE_CHANGES.get(message.event), message)

    def _ask(
        self,
        call: ttrpc.Call,
        response: type[Message],
        event: nri_versions.EventMaker | None,
        message: Message,
    ) -> None:
        if event is None:
            self._server.reply(call.stream, b"")
        elif self._in_turn(call, Input.CALL):
            self._open[call.stream] = response
            self._events.append(event(call.stream, self._budget_ms(call), message))

    def _in_turn(self, call: ttrpc.Call, step: Input) -> bool:
        """Apply the transition `step`. If there is none, answer that the call is out of turn."""
        if self._advance(step):
            return True
        text = f"{call.method} comes out of turn: the session is {self._state.name.lower()}"
        self._server.fail(call.stream, Code.FAILED_PRECONDITION, text)
        return False

    def _budget_ms(self, call: ttrpc.Call) -> int:
        """Return the runtime's timeout, or the call's own deadline if that is shorter. The chunks
        of Synchronize share one deadline. Therefore each chunk has less time left."""
        budget_ms = self.runtime.request_timeout_ms
        return min(budget_ms, call.timeout_ns // 1_000_000) if call.timeout_ns else budget_ms


_HANDLERS: Final[Mapping[str, Callable[[Session, ttrpc.Call, Any], None]]] = {
    "Configure": Session._configure,
    "Synchronize": Session._synchronize,
    "Shutdown": Session._shutdown,
    "StateChange": Session._state_change,
}
"""The methods that the session handles itself. Calls of other methods become events, or get an
empty answer."""
