"""One NRI session over a socket: transfers bytes and enforces the session's deadlines.

The registration has a deadline of 30 s, because the runtime accepts plugins one at a time, and each
idle client before us blocks it for five seconds. Synchronize has no deadline, because the runtime
may delay it while a pod with a long grace period stops. While the runtime reads no answers, we read
no requests. Otherwise pending answers would accumulate in memory.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from nri_plugin.nri import observer
from nri_plugin.nri.answers import Answers, Decision, Handler, Outcome
from nri_plugin.protocol import session_events
from nri_plugin.protocol.errors import NriError
from nri_plugin.protocol.session import Session
from nri_plugin.protocol.session_events import SERVED_EVENTS, EventMask, RuntimeInfo

logger = logging.getLogger(__name__)

REGISTRATION_TIMEOUT_S: Final = 30.0
CLOSING_TIMEOUT_S: Final = 2.0
QUIET_S: Final = 0.1
"""Time without requests before the session is closed. It is long enough that a container's creation
and its validation, which follows at once, are in one session."""


class RegistrationTimedOut(NriError):
    """The runtime did not accept our registration in time. The caller should reconnect."""


class RuntimeRefused(NriError):
    """We do not serve this version of the runtime. Reconnecting helps only after an upgrade."""


async def serve(
    unix: socket.socket,
    handler: Handler,
    *,
    name: str,
    index: str,
    wanted_events: EventMask = SERVED_EVENTS,
    on_ready: Callable[[RuntimeInfo], None] = lambda _runtime: None,
    on_decision: Callable[[Decision], None] = observer.write,
    leaving: asyncio.Event | None = None,
    registration_timeout_s: float = REGISTRATION_TIMEOUT_S,
) -> None:
    """Serve as plugin `index`-`name` on a connected Unix socket until the session ends.

    Returns when the runtime ended the connection, or when `leaving` is set and the requests
    received until then are answered. Otherwise raises an NriError (see protocol/errors.py) or the
    socket's OSError. Before that it closes the socket and cancels the handlers' tasks, each within
    CLOSING_TIMEOUT_S. The caller should reconnect with backoff and jitter. on_ready: called once,
    after Synchronize was answered. on_decision: called after every answer.
    """
    session = Session(
        name=name,
        index=index,
        wanted=wanted_events,
        registration_budget_ms=round(registration_timeout_s * 1000),
    )
    connection = _Connection(handler, session, on_ready, on_decision, registration_timeout_s)
    await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=unix)
    try:
        await connection.until_left(leaving or asyncio.Event())
    finally:
        await connection.close()


async def connected(path: Path) -> socket.socket:
    unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    unix.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(unix, str(path))
    except BaseException:
        unix.close()
        raise
    return unix


class _Connection(asyncio.Protocol):
    def __init__(
        self,
        handler: Handler,
        session: Session,
        on_ready: Callable[[RuntimeInfo], None],
        on_decision: Callable[[Decision], None],
        registration_timeout_s: float,
    ) -> None:
        self._session = session
        self._answers = Answers(handler, session, self._send, self._decided)
        self._on_ready = on_ready
        self._on_decision = on_decision
        self._registration_timeout_s = registration_timeout_s
        loop = asyncio.get_running_loop()
        self._over: asyncio.Future[Exception | None] = loop.create_future()
        """The error that ended the session. None: it ended without an error."""
        self._lost: asyncio.Future[None] = loop.create_future()

    # --- callbacks of the event loop -----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._poll = select.poll()
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        timeout_s = self._registration_timeout_s
        too_late = RegistrationTimedOut(
            f"no answer to the registration within {timeout_s:g} s: is another plugin, or a runtime"
            " that starts, holding the line?"
        )
        loop = asyncio.get_running_loop()
        self._registration = loop.call_later(timeout_s, self._end, too_late)
        self._session.register()
        self._send()

    def data_received(self, data: bytes) -> None:
        try:
            received = self._session.receive_data(data)
        except NriError as error:
            self._end(error)
            return
        for event in received:
            if isinstance(event, session_events.CreateContainer) and self._runtime_closed():
                logger.debug("request ignored, connection closed: container=%s", event.container.id)
            elif isinstance(event, session_events.Request):
                self._answers.begin(event)
            else:
                logger.debug("event=%s", event)
        self._send()
        if self._session.introduced:
            self._registration.cancel()

    def eof_received(self) -> None:
        self._end()

    def pause_writing(self) -> None:
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        # These two errors mean that we wrote after the runtime had closed the connection.
        self._end(None if isinstance(error, BrokenPipeError | ConnectionResetError) else error)
        self._lost.set_result(None)

    # --- the session's lifecycle ---------------------------------------------------------------

    async def until_left(self, leaving: asyncio.Event) -> None:
        """Wait until the session is over. After `leaving` is set, also return once all requests are
        answered and no request has arrived for QUIET_S."""
        first = asyncio.FIRST_COMPLETED
        signal = asyncio.create_task(leaving.wait(), name="leaving")
        either: set[asyncio.Future[Any]] = {self._over, signal}
        try:
            await asyncio.wait(either, return_when=first)
        finally:
            signal.cancel()
        while not self._over.done():
            requested, unanswered = self._answers.requested, set(self._answers.unanswered)
            some: set[asyncio.Future[Any]] = {self._over, *unanswered}
            await asyncio.wait(some, timeout=QUIET_S, return_when=first)
            if not unanswered and requested == self._answers.requested:
                return
        error = self._over.result()
        if error is not None:
            raise error

    async def close(self) -> None:
        """Cancel the handlers' tasks and close the socket. Each takes at most CLOSING_TIMEOUT_S."""
        self._end()
        await self._answers.end(CLOSING_TIMEOUT_S)
        _, stuck = await asyncio.wait({self._lost}, timeout=CLOSING_TIMEOUT_S)
        if stuck:  # the runtime does not read the remaining bytes
            self._transport.abort()

    def _end(self, error: Exception | None = None) -> None:
        """Stop reading and answering. The socket closes after the bytes written so far are sent."""
        self._session.receive_eof()
        self._registration.cancel()
        self._transport.close()
        if not self._over.done():
            self._over.set_result(error)

    def _send(self) -> None:
        if data := self._session.data_to_send():
            self._transport.write(data)
        if self._session.closed:
            refusal = self._session.refusal
            self._end(self._answers.failure if refusal is None else RuntimeRefused(refusal))

    def _decided(self, request: session_events.Request, decision: Decision) -> None:
        self._on_decision(decision)
        if isinstance(request, session_events.Synchronize) and decision.outcome is Outcome.PASSED:
            self._on_ready(self._session.runtime)

    def _runtime_closed(self) -> bool:
        """Whether the runtime has already closed the connection from which this data was read. This
        happens after our process hung for longer than the runtime's timeout."""
        return self._session.closed or bool(self._poll.poll(0))
