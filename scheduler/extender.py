"""kube-scheduler's extender over HTTP: POST /filter, /prioritize, /preempt, /bind.

It handles HTTP and decides nothing. A call that cannot be served gets an error, so kube-scheduler
retries the pod. There is no authentication: any process that can connect can bind pods.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from aiohttp import web

from gpuslice.kube.log_lines import Line
from scheduler.binder import Binder
from scheduler.decisions.verbs import Verbs, error
from scheduler.kubernetes import arguments
from scheduler.kubernetes.arguments import ArgumentsError
from scheduler.leadership import Leadership
from scheduler.metrics import Metrics

_LOG: Final = logging.getLogger(__name__)

MAX_BYTES: Final = 64 << 20
"""The size limit of a body: enough for the largest pod of the API server and 100,000 node names."""
BODY_S: Final = 30.0
"""The time limit for receiving a request's body."""
LEAVE_S: Final = 1.0
"""How long a shutdown waits for pending answers."""
NOT_SYNCED: Final = "gpuslice has not read all pods, nodes and GPUs yet"
_FAILED: Final = {"/preempt": 503}
"""The HTTP status of an error, by verb. It is 200 for the other verbs, whose results have an error
field. ExtenderPreemptionResult has none, and with status 200 an error would mean "no victims"."""
_ALLOW: Final = {"Allow": "POST"}
_OUTCOMES: Final = {False: "answered", True: "error"}

Reply = tuple[bytes, str]
"""The body of an answer, and the error that it contains; "" for none."""
Call = Callable[[bytes], Reply | Awaitable[Reply]]


class Extender:
    """Serves the verbs. is_synced: returns whether all objects were listed."""

    def __init__(
        self,
        verbs: Verbs,
        binder: Binder,
        guard: Leadership,
        is_synced: Callable[[], bool],
        metrics: Metrics,
    ) -> None:
        self._verbs = verbs
        self._binder = binder
        self._guard = guard
        self._is_synced = is_synced
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

    async def serve(self, host: str, port: int) -> web.ServerRunner:
        """Serve until the runner's `cleanup`. Port 0 is any free port; see the runner's addresses.
        A caller that disconnects does not cancel its call, because its Binding may be applied."""
        make = partial(web.BaseRequest, loop=asyncio.get_running_loop(), client_max_size=MAX_BYTES)
        server = web.Server(self._answer, request_factory=make, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=LEAVE_S)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError:
            await runner.cleanup()
            raise
        return runner

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        if request.path not in self._calls:
            return web.Response(text=f"path: must be one of {', '.join(self._calls)}\n", status=404)
        if request.method != "POST":
            return web.Response(text="method: must be POST\n", status=405, headers=_ALLOW)
        body = await _read(request)
        verb, began_s = request.path, time.perf_counter()
        try:
            reply = self._calls[verb](body)
            if not isinstance(reply, tuple):
                reply = await reply
        except Exception as fault:
            reply = _fault(verb, fault)
        answer, refused = reply
        self._seconds[verb, bool(refused)].observe(time.perf_counter() - began_s)
        status = _FAILED.get(verb, 200) if refused else 200
        return web.Response(body=answer, status=status, content_type="application/json")

    def _filter(self, body: bytes) -> Reply | Awaitable[Reply]:
        """Answer without an await if this process may write now, which saves time for each pod."""
        if self._is_synced() and self._guard.record_call():
            return self._verbs.filter(body), ""
        return self._admitted(self._verbs.filter, body)

    def _prioritize(self, body: bytes) -> Reply:
        """Score the nodes. The Lease is not checked, because `filter` checked it for this pod. An
        error only makes kube-scheduler continue without scores."""
        return (self._verbs.prioritize(body), "") if self._is_synced() else _refused(NOT_SYNCED)

    async def _preempt(self, body: bytes) -> Reply:
        """Answer a preempt call. The Lease is checked, because `filter` may not have been called:
        kube-scheduler leaves out nodes that are full by its own count."""
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
        refused = await self._refusal() or (await self._binder.bind(wanted)).error
        if refused:
            pod = f"{wanted.namespace}/{wanted.name}"
            _LOG.warning(Line("not bound", pod=pod, node=wanted.node, error=refused))
        return _refused(refused)

    async def _refusal(self) -> str:
        return await self._guard.admit() if self._is_synced() else NOT_SYNCED


async def _read(request: web.BaseRequest) -> bytes:
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text="the rest of the request did not arrive\n") from None


def _refused(why: str) -> Reply:
    """Return the answer with this error. For a bind, "" means success."""
    return error(why), why


def _fault(verb: str, fault: Exception) -> Reply:
    if isinstance(fault, ArgumentsError):
        return _refused(str(fault))
    _LOG.error(Line("verb failed", verb=verb), exc_info=fault)
    return _refused(f"gpuslice failed: {fault!r}")
