"""kube-scheduler's extender over HTTP: POST /filter, /prioritize, /preempt, /bind.

Handles HTTP and access, and decides nothing. A call that cannot be served gets an error, never an
empty success, so that kube-scheduler retries the pod. Has no authentication: any process that can
connect can bind pods.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, Protocol

from kube.http1 import TEXT, Request, Response
from kube.log_lines import Line
from scheduler.binder import Binder
from scheduler.decisions.verbs import Verbs, error
from scheduler.kubernetes import arguments
from scheduler.kubernetes.arguments import ArgumentsError
from scheduler.leader import LeaseGuard
from scheduler.metrics import Metrics
from scheduler.server import Server

_LOG: Final = logging.getLogger(__name__)

MOST_BYTES: Final = 64 << 20
"""Limit of a body: the largest pod that the API server accepts, and a hundred thousand names."""
NOT_SYNCED: Final = "gpuslice has not read all pods, nodes and GPUs yet"
_FAILED: Final = {"/preempt": 503}
"""HTTP status of an error by verb; else 200. ExtenderPreemptionResult has no error field: any body
that is parsed means that no victims were found."""
_OUTCOMES: Final = {False: "answered", True: "error"}

Reply = tuple[bytes, str]
"""An answer, and the error in it; "" for none."""
Call = Callable[[bytes], Reply | Awaitable[Reply]]


class Source(Protocol):
    """The methods of `cache.Cache` that the extender uses."""

    @property
    def synced(self) -> bool: ...


class Extender:
    """See the module."""

    def __init__(
        self,
        verbs: Verbs,
        binder: Binder,
        guard: LeaseGuard,
        source: Source,
        metrics: Metrics,
    ) -> None:
        self._verbs = verbs
        self._binder = binder
        self._guard = guard
        self._source = source
        self._calls: Final[Mapping[str, Call]] = {
            "/filter": self._filter,
            "/prioritize": self._prioritize,
            "/preempt": self._preempt,
            "/bind": self._bind,
        }
        self._seconds: Final = {
            (verb, refused): metrics.verb_duration.labels(verb[1:], _OUTCOMES[refused])
            for verb in self._calls
            for refused in _OUTCOMES
        }

    async def serve(self, host: str, port: int) -> Server:
        """Serves until `close`. Port 0: any free port; see the server's address."""
        server = Server(self._answer, MOST_BYTES)
        await server.start(host, port)
        return server

    def _answer(self, request: Request) -> Response | Coroutine[Any, Any, Response]:
        verb = request.path
        if verb not in self._calls:
            text = f"path: must be one of {', '.join(self._calls)}\n"
            return Response(text.encode(), TEXT, 404)
        if request.method != "POST":
            return Response(b"method: must be POST\n", TEXT, 405, allow="POST")
        began_s = time.perf_counter()
        try:
            reply = self._calls[verb](request.body)
            if not isinstance(reply, tuple):
                return self._later(verb, began_s, reply)
        except Exception as fault:
            reply = _fault(verb, fault)
        return self._answered(verb, began_s, reply)

    async def _later(self, verb: str, began_s: float, work: Awaitable[Reply]) -> Response:
        try:
            reply = await work
        except Exception as fault:
            reply = _fault(verb, fault)
        return self._answered(verb, began_s, reply)

    def _answered(self, verb: str, began_s: float, reply: Reply) -> Response:
        answer, refused = reply
        self._seconds[verb, bool(refused)].observe(time.perf_counter() - began_s)
        return Response(answer, status=_FAILED.get(verb, 200) if refused else 200)

    def _filter(self, body: bytes) -> Reply | Awaitable[Reply]:
        """Handles every pod, synchronously where possible."""
        if self._source.synced and self._guard.record_call():
            return self._verbs.filter(body), ""
        return self._admitted(self._verbs.filter, body)

    def _prioritize(self, body: bytes) -> Reply:
        """After an error kube-scheduler continues without scores. A process without the Lease has
        already refused the filter."""
        return (self._verbs.prioritize(body), "") if self._source.synced else _refused(NOT_SYNCED)

    async def _preempt(self, body: bytes) -> Reply:
        """kube-scheduler does not call filter first for a node that is full."""
        if refused := await self._refusal():
            return _refused(refused)
        answer = bytearray()
        for part in self._verbs.preempt(body):
            answer += part
            await asyncio.sleep(0)
        return bytes(answer), ""

    async def _admitted(self, verb: Callable[[bytes], bytes], body: bytes) -> Reply:
        refused = await self._refusal()
        return _refused(refused) if refused else (verb(body), "")

    async def _bind(self, body: bytes) -> Reply:
        wanted = arguments.binding(body)
        refused = await self._refusal() or await self._binder.bind(wanted)
        if refused:
            pod = f"{wanted.namespace}/{wanted.name}"
            _LOG.warning(Line("not bound", pod=pod, node=wanted.node, error=refused))
        return _refused(refused)

    async def _refusal(self) -> str:
        return await self._guard.admit() if self._source.synced else NOT_SYNCED


def _refused(why: str) -> Reply:
    """The body of a bind's answer; why "" means success."""
    return error(why), why


def _fault(verb: str, fault: Exception) -> Reply:
    if isinstance(fault, ArgumentsError):
        return _refused(str(fault))
    _LOG.error(Line("verb failed", verb=verb), exc_info=fault)
    return _refused(f"gpuslice failed: {fault!r}")
