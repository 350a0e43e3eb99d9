"""Runs the handler for each request of the runtime, and answers exactly once, within the deadline.

The handler (service.py) returns a reply, None for an empty reply, or a coroutine that returns one
of these. It raises Refused with a reason that users read. Any other exception is a bug. A handler
for a container's creation must be idempotent, and the container's stop and removal must undo all
its effects. A handler waits for NVML, a tenant's files or the API server only with a deadline.

After a timeout the runtime drops the plugin and, before NRI 0.12.5, starts the container without
our adjustment. Therefore we answer with an error after 75 % of the runtime's timeout.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias, TypeVar

from gpuslice.kube.log_lines import printable
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.policy import refusals
from nri_plugin.policy.model import Pod
from nri_plugin.policy.refusals import Refused
from nri_plugin.protocol import session_events
from nri_plugin.protocol.errors import NriError
from nri_plugin.protocol.session import Session
from nri_plugin.protocol.session_events import Code

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
Answer: TypeAlias = _T | Coroutine[Any, Any, _T]
"""The result, or a coroutine that returns it. A direct result saves an asyncio task."""
Reply: TypeAlias = nri.CreateContainerResponse | None
Handler: TypeAlias = Callable[[session_events.Request], Answer[Reply]]

BUDGET_SHARE: Final = 0.75
"""Fraction of the runtime's request timeout after which we answer with an error."""

_MAX_TEXT_CHARS: Final = 2000
"""Limit of a refusal's text, which may quote long texts of the tenant."""


class Outcome(StrEnum):
    """How a request was answered. The values are labels of the metric and fields of the log."""

    ADJUSTED = "adjusted"
    """The answer has an adjustment."""
    PASSED = "passed"
    """The answer is a success without an adjustment."""
    REFUSED = "refused"
    """The answer is an error with the policy's reason."""
    LATE = "late"
    """The answer is an error, because the handler did not finish in time."""
    ERROR = "error"
    """The answer is an error, because the agent has a bug. The traceback is logged."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One answered request. about: fields of the log that name the pod and the container, with
    unchecked names of the tenant. For Synchronize, the numbers of pods and containers."""

    request: str
    outcome: Outcome
    duration_s: float
    """Time from the request's arrival until the answer was passed to the socket."""
    about: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    """The name of the refusals.Reason. "": the request was not refused."""
    text: str = ""
    """The error text that was sent to the runtime. "": there was no error."""
    error: BaseException | None = None


class SynchronizeFailed(NriError):
    """The handler of Synchronize failed. The handler's exception is the cause."""


@dataclass(eq=False)
class Answers:
    """Runs handlers and answers requests. send: called when the session has an answer to send.
    on_decision: called after `send`."""

    handler: Handler
    session: Session
    send: Callable[[], None]
    on_decision: Callable[[session_events.Request, Decision], None]
    unanswered: set[asyncio.Task[Any]] = field(default_factory=set)
    """Tasks of requests without an answer. A task may run on after its request timed out."""
    requested: int = 0
    failure: SynchronizeFailed | None = None
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def begin(self, request: session_events.Request) -> None:
        """Start the handler for `request`, which is answered in time even if the handler fails."""
        began_s = time.monotonic()
        self.requested += 1
        try:
            answer = self.handler(request)
        except (Exception, asyncio.CancelledError) as error:
            self._fail(request, began_s, error)
            return
        if answer is None or isinstance(answer, nri.CreateContainerResponse):
            self._respond(request, began_s, answer)
        else:
            self._await(request, began_s, answer)

    async def end(self, timeout_s: float) -> None:
        """Cancel the handlers' tasks, and wait for their end. Their results are discarded."""
        self.unanswered.clear()
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            _, stuck = await asyncio.wait(tasks, timeout=timeout_s)
            for task in stuck:
                logger.error("task=%r outcome=stuck", task.get_name())

    def _await(
        self, request: session_events.Request, began_s: float, work: Coroutine[Any, Any, Any]
    ) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(work, name=type(request).__name__)
        self._tasks.add(task)
        self.unanswered.add(task)
        budget_s = request.budget_ms / 1000 * BUDGET_SHARE

        def late() -> None:
            if task in self.unanswered and not task.done():
                self.unanswered.discard(task)
                task.cancel()
                self._fail(request, began_s, _Late(request, budget_s))

        timer = loop.call_later(budget_s, late)

        def ended(_task: asyncio.Task[Any]) -> None:
            timer.cancel()
            self._tasks.discard(task)
            cancelled = asyncio.CancelledError("cancelled by itself")
            # Always retrieve the task's exception. Otherwise asyncio would log a warning.
            error = cancelled if task.cancelled() else task.exception()
            if task not in self.unanswered:
                return
            self.unanswered.discard(task)
            if error is None:
                self._respond(request, began_s, task.result())
            else:
                self._fail(request, began_s, error)

        task.add_done_callback(ended)

    def _respond(self, request: session_events.Request, began_s: float, reply: Reply) -> None:
        if self.session.closed:
            return
        if not self.session.respond(request.request_id, reply):
            text = "the answer is larger than the protocol allows"
            self._answered(request, began_s, Outcome.ERROR, text=text)
        else:
            outcome = Outcome.PASSED if reply is None else Outcome.ADJUSTED
            self._answered(request, began_s, outcome)

    def _fail(self, request: session_events.Request, began_s: float, error: BaseException) -> None:
        if self.session.closed:
            return
        what, code = type(request).__name__, Code.UNKNOWN
        outcome, reason, bug = Outcome.ERROR, "", None
        match error:
            case _Late():
                outcome, code, text = Outcome.LATE, Code.DEADLINE_EXCEEDED, str(error)
            case Refused():
                outcome, reason = Outcome.REFUSED, error.refusal.reason.name
                text = _worded(request, error)
            case _:
                problem = f"{type(error).__name__}: {error}"
                text, bug = refusals.FAILED.format(what=what, error=problem), error
        self.session.fail(request.request_id, code, text)
        if isinstance(request, session_events.Synchronize):
            self.failure = SynchronizeFailed(text)
            self.failure.__cause__ = error
        self._answered(request, began_s, outcome, reason=reason, text=text, error=bug)

    def _answered(
        self, request: session_events.Request, began_s: float, outcome: Outcome, **more: Any
    ) -> None:
        self.send()
        duration_s = time.monotonic() - began_s

        def report() -> None:
            what = type(request).__name__
            self.on_decision(request, Decision(what, outcome, duration_s, _about(request), **more))

        # Called by the event loop, because an exception in `report` must not end the session.
        asyncio.get_running_loop().call_soon(report)


class _Late(Exception):
    def __init__(self, request: session_events.Request, budget_s: float) -> None:
        what = type(request).__name__
        super().__init__(refusals.DECIDES_LATE.format(what=what, budget_s=budget_s))


def _worded(request: session_events.Request, refused: Refused) -> str:
    """Return the refusal's text, which the pod's author reads in an event."""
    about, text = _about(request), str(refused)
    if "container" in about:
        pod = f"{about['namespace']}/{about['pod']}"
        text = refusals.CONTAINER_REFUSED.format(container=about["container"], pod=pod, text=text)
    return printable(text)[:_MAX_TEXT_CHARS]


def _about(request: session_events.Request) -> Mapping[str, Any]:
    match request:
        case session_events.ContainerRequest(pod=pod, container=container):
            pass
        case session_events.Validate(request=validation):
            pod, container = validation.pod, validation.container
        case session_events.Synchronize(pods=pods, containers=containers):
            return {"pods": len(pods), "containers": len(containers)}
        case _:
            return {}
    return Pod(pod.uid, pod.namespace, pod.name).log_fields(container.name, container.id)
