"""One NRI session over asyncio streams: pumps bytes, keeps the deadlines, calls the handler.

Everything the protocol says is in protocol/, which has neither clock nor socket; everything the
answers mean is in the handler (service.py), which also connects, and reconnects when `serve`
returns.

Two deadlines live here. Registration: the runtime accepts plugins one at a time, and an idle client
before us holds the line for five seconds, so we wait 30. Requests: a runtime that waits in vain
drops the plugin and, before NRI 0.12.5, lets the container run without it; so after 75 % of its
patience we answer an error instead, which fails the request and keeps the registration. Between
registration and Synchronize there is none: the runtime may hold it back while a pod with a long
grace period stops.
"""

from __future__ import annotations

import asyncio
import logging
import select
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from google.protobuf.message import Message

from nri_plugin import observer
from nri_plugin.decisions import Decision, Outcome
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.protocol import events
from nri_plugin.protocol.errors import NriError
from nri_plugin.protocol.events import SERVED_EVENTS, Code, EventMask, RuntimeInfo
from nri_plugin.protocol.session import Session

logger = logging.getLogger(__name__)

REGISTRATION_TIMEOUT_S: Final = 30.0
PATIENCE: Final = 0.75
"""The part of the runtime's request timeout after which we answer an error ourselves."""
CLOSING_TIMEOUT_S: Final = 2.0
QUIET_S: Final = 0.1
"""Nothing asked for so long: a moment to leave. What was just created is validated right after."""
READ_BYTES: Final = 1 << 16


class Handler(Protocol):
    """What serves the events. One method runs per request, the asynchronous ones as a task.

    Raise Refused to give the runtime a reason in the words meant for people; any other exception is
    a bug, logged with its traceback and answered as an error too. A method that outlives its
    deadline is answered for and cancelled. Never wait for anything that may hang (NVML, a tenant's
    file, the API server): every container of the node waits behind the answer.
    """

    async def synchronize(
        self, pods: Sequence[nri.PodSandbox], containers: Sequence[nri.Container]
    ) -> None:
        """Take over what runs. Called once, before anything else; raising ends the session."""

    async def create_container(
        self, pod: nri.PodSandbox, container: nri.Container
    ) -> nri.ContainerAdjustment | None:
        """Return the adjustment, None for none; raise Refused and the container is not created.

        Must be idempotent, and leave nothing that stop and remove do not undo: the runtime sends
        these for a container whose creation failed, here or in a plugin after us.
        """

    async def start_container(self, pod: nri.PodSandbox, container: nri.Container) -> None:
        """Raise Refused and the container, created and with its rootfs mounted, does not start."""

    async def stop_container(self, pod: nri.PodSandbox, container: nri.Container) -> None:
        """The container has ended. What is raised is only logged by the runtime."""

    async def remove_container(self, pod: nri.PodSandbox, container: nri.Container) -> None:
        """The container is forgotten. What is raised is only logged by the runtime."""

    def validate(
        self, request: nri.ValidateContainerAdjustmentRequest
    ) -> Coroutine[Any, Any, None] | None:
        """Look at what all plugins made together; raise Refused to reject the container.

        At once, as None: every creation is validated, and what waits for nothing needs no task.
        Where it does need to wait, what is returned says the verdict.
        """


class Refused(Exception):
    """A request denied on purpose; `reason` reaches the user through the runtime, word for word.

    code: the reason's short name, for counting.
    """

    def __init__(self, reason: str, code: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


class RegistrationTimedOut(NriError):
    """Nobody at the socket took our registration in time; connect again."""


class RuntimeRefused(NriError):
    """We do not serve this runtime; to connect again helps only after an upgrade of it."""


class SynchronizeFailed(NriError):
    """The handler could not take over what runs; its exception is the cause."""


async def serve(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    handler: Handler,
    *,
    name: str,
    index: str,
    wanted_events: EventMask = SERVED_EVENTS,
    on_ready: Callable[[RuntimeInfo], None] | None = None,
    on_decision: Callable[[Decision], None] = observer.write,
    leaving: asyncio.Event | None = None,
    registration_timeout_s: float = REGISTRATION_TIMEOUT_S,
) -> None:
    """Be the plugin `index`-`name` on an open connection, until the runtime ends it.

    Returns at the end of file: the runtime stopped, or dropped us; and when `leaving` is set and
    what was asked until then is answered (NRI has no farewell; the end of the connection is it).
    Raises an NriError (the tree is in protocol/errors.py) or the socket's OSError otherwise. In
    every case the writer is closed and the handler's methods have been cancelled, and given
    CLOSING_TIMEOUT_S to end, before it returns; reconnect after a pause that grows and varies.
    `on_ready` is called once, when the answer to Synchronize has been sent; `on_decision` after
    every answer.
    """
    session = Session(
        name=name,
        index=index,
        wanted=wanted_events,
        registration_budget_ms=round(registration_timeout_s * 1000),
    )
    connection = _Connection(reader, writer, handler, session, on_ready, on_decision)
    await connection.run_until(leaving or asyncio.Event(), registration_timeout_s)


class _Connection:
    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handler: Handler,
        session: Session,
        on_ready: Callable[[RuntimeInfo], None] | None,
        on_decision: Callable[[Decision], None],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._handler = handler
        self._session = session
        self._on_ready = on_ready
        self._on_decision = on_decision
        self._poll = select.poll()
        self._poll.register(writer.get_extra_info("socket").fileno(), select.POLLRDHUP)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._unanswered: set[asyncio.Future[Any]] = set()
        self._asked = 0
        self._failure: NriError | None = None

    async def run(self, registration_timeout_s: float) -> None:
        try:
            self._session.register()
            alive = True
            try:
                async with asyncio.timeout(registration_timeout_s) as timer:
                    await self._flush()
                    while alive and not self._session.introduced:
                        alive = await self._pump()
            except TimeoutError:
                if not timer.expired():
                    raise
                raise RegistrationTimedOut(
                    f"no answer to the registration within {registration_timeout_s:g} s: "
                    "is another plugin, or a runtime that starts, holding the line?"
                ) from None
            while alive:
                alive = await self._pump()
            if self._session.refusal is not None:
                raise RuntimeRefused(self._session.refusal)
            if self._failure is not None:
                raise self._failure
        finally:
            await self._close()

    async def run_until(self, leaving: asyncio.Event, registration_timeout_s: float) -> None:
        """As `run`, to the first quiet moment after `leaving`."""
        work = asyncio.create_task(self.run(registration_timeout_s), name="connection")
        signal = asyncio.create_task(leaving.wait(), name="leaving")
        try:
            await asyncio.wait({work, signal}, return_when=asyncio.FIRST_COMPLETED)
            while not work.done():
                asked = self._asked
                if self._unanswered:  # a handler that outlives its answer is not waited for
                    first = asyncio.FIRST_COMPLETED
                    await asyncio.wait(
                        {work, *self._unanswered}, timeout=QUIET_S, return_when=first
                    )
                else:
                    await asyncio.wait({work}, timeout=QUIET_S)
                    if asked == self._asked:
                        break
        finally:
            signal.cancel()
            work.cancel()
            await asyncio.wait({work})
        if not work.cancelled():
            work.result()

    async def _pump(self) -> bool:
        """Take what came and start what it asks for; False when the session is over."""
        data = await self._reader.read(READ_BYTES)
        if not data:
            self._session.receive_eof()
            return False
        for event in self._session.receive_data(data):
            if isinstance(event, events.CreateContainer) and self._hung_up():
                # Asked of a process that hung: the runtime has decided without us, and dropped us.
                logger.debug("asked=%s of nobody", event.container.id)
            elif isinstance(event, events.Request):
                self._asked += 1
                self._begin(event)
            else:
                logger.debug("event=%s", event)
        await self._flush()
        return not self._session.closed

    def _hung_up(self) -> bool:
        """Whether the runtime has left, though not all is read of what it said."""
        return bool(self._poll.poll(0))

    def _begin(self, request: events.Request) -> None:
        """Have `request` handled, and answered in time, whatever its handler does."""
        loop, began_s = asyncio.get_running_loop(), time.monotonic()
        if isinstance(request, events.Validate):
            verdict: asyncio.Future[Message | None] = loop.create_future()
            looking = None
            try:
                looking = self._handler.validate(request.request)
                verdict.set_result(None)
            except (Exception, asyncio.CancelledError) as error:
                verdict.set_exception(error)
            if looking is None:
                self._unanswered.add(verdict)
                self._answer(request, verdict, began_s, 0.0)
                return
            performed: Coroutine[Any, Any, Message | None] = looking
        else:
            performed = _perform(self._handler, request)
        work = loop.create_task(performed, name=type(request).__name__)
        self._tasks.add(work)
        self._unanswered.add(work)
        budget_s = request.budget_ms / 1000 * PATIENCE
        timer = loop.call_later(budget_s, self._answer, request, work, began_s, budget_s)

        def ended(_work: asyncio.Task[Message | None]) -> None:
            timer.cancel()
            self._tasks.discard(work)
            if not work.cancelled():
                work.exception()  # marks it as seen, where it comes too late to be told
            self._answer(request, work, began_s, budget_s)

        work.add_done_callback(ended)

    def _answer(
        self,
        request: events.Request,
        work: asyncio.Future[Message | None],
        began_s: float,
        budget_s: float,
    ) -> None:
        """Answer with what has become of `work` by now; once."""
        if work not in self._unanswered:
            return
        self._unanswered.discard(work)
        if self._session.closed:
            return
        what = type(request).__name__
        outcome, reason, text, error = Outcome.PASSED, "", "", None
        if not work.done():
            work.cancel()
            outcome = Outcome.LATE
            text = f"gpuslice did not decide {what} within {budget_s:.3g} s"
            self._fail(request, Code.DEADLINE_EXCEEDED, text, None)
        elif (error := _error_of(work)) is None:
            reply = work.result()
            if not self._session.respond(request.request_id, reply):
                outcome, text = Outcome.ERROR, "the answer is larger than the protocol allows"
            elif isinstance(reply, nri.CreateContainerResponse) and reply.HasField("adjust"):
                outcome = Outcome.ADJUSTED
        elif isinstance(error, Refused):
            outcome, reason, text = Outcome.REFUSED, error.code, error.reason
            self._fail(request, Code.UNKNOWN, text, error)
            error = None
        else:
            outcome = Outcome.ERROR
            text = f"gpuslice failed at {what}: {type(error).__name__}: {error}"
            self._fail(request, Code.UNKNOWN, text, error)
        self._send()
        duration_s = time.monotonic() - began_s
        self._on_decision(
            Decision(
                what, outcome, duration_s, reason=reason, text=text, error=error, **_of(request)
            )
        )
        if self._failure is not None:
            self._writer.close()
        elif isinstance(request, events.Synchronize) and self._on_ready is not None:
            self._on_ready(self._session.runtime)

    def _fail(
        self, request: events.Request, code: Code, reason: str, error: BaseException | None
    ) -> None:
        self._session.fail(request.request_id, code, reason)
        if isinstance(request, events.Synchronize):
            self._failure = SynchronizeFailed(reason)
            self._failure.__cause__ = error

    def _send(self) -> None:
        """Hand what is due to the transport, which bears a connection that is lost meanwhile."""
        if data := self._session.data_to_send():
            self._writer.write(data)

    async def _flush(self) -> None:
        """And read no more before the runtime has read enough of it."""
        self._send()
        await self._writer.drain()

    async def _close(self) -> None:
        """End the handler's methods and the socket, neither waited for without a bound."""
        self._unanswered.clear()
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            _, stuck = await asyncio.wait(tasks, timeout=CLOSING_TIMEOUT_S)
            for task in stuck:
                logger.error("task=%r outcome=stuck", task.get_name())
        self._writer.close()
        try:
            async with asyncio.timeout(CLOSING_TIMEOUT_S):
                await self._writer.wait_closed()
        except OSError:  # TimeoutError is one: the runtime does not read what is left
            self._writer.transport.abort()


def _error_of(work: asyncio.Future[Any]) -> BaseException | None:
    """How a finished handler failed. One that cancels itself has failed too."""
    return asyncio.CancelledError("cancelled by itself") if work.cancelled() else work.exception()


def _of(request: events.Request) -> dict[str, Any]:
    """Whom the request is about, as a decision's fields."""
    match request:
        case events.ContainerRequest(pod=pod, container=container):
            pass
        case events.Validate(request=validation):
            pod, container = validation.pod, validation.container
        case events.Synchronize(pods=pods, containers=containers):
            return {"pods": len(pods), "containers": len(containers)}
        case _:
            return {}
    return {
        "namespace": pod.namespace,
        "pod": pod.name,
        "uid": pod.uid,
        "container": container.name,
        "container_id": container.id,
    }


async def _perform(handler: Handler, request: events.Request) -> Message | None:
    """The handler's method for `request`, and its result as the reply; None is the empty reply."""
    match request:
        case events.CreateContainer(pod=pod, container=container):
            adjustment = await handler.create_container(pod, container)
            return nri.CreateContainerResponse(adjust=adjustment)
        case events.StartContainer(pod=pod, container=container):
            await handler.start_container(pod, container)
        case events.StopContainer(pod=pod, container=container):
            await handler.stop_container(pod, container)
        case events.RemoveContainer(pod=pod, container=container):
            await handler.remove_container(pod, container)
        case events.Synchronize(pods=pods, containers=containers):
            await handler.synchronize(pods, containers)
    return None
