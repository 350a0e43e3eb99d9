"""kube-scheduler's extender over HTTP: POST /filter, /prioritize, /bind.

Knows HTTP and who is answered, and decides nothing. What cannot be answered is answered with an
error, never with an empty success: kube-scheduler tries the pod again. For 127.0.0.1 alone: who can
connect can bind pods. Why aiohttp, see docs/adr/0019.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage

from contract.log_lines import Line
from scheduler import arguments
from scheduler.arguments import ArgumentsError
from scheduler.binder import Binder
from scheduler.gate import Gate
from scheduler.metrics import Metrics
from scheduler.verbs import Verbs, error

_LOG: Final = logging.getLogger(__name__)

MOST_BYTES: Final = 64 << 20
"""Of a call: the largest pod that the API server takes, and a hundred thousand names."""
KEEP_S: Final = 3600.0
"""For an idle connection: longer than kube-scheduler keeps one (90 s), so that none is closed under
a call that is just being sent, which it would not send again."""
LEAVE_S: Final = 1.0
"""How long those that are being answered are waited for when the server stops."""
NOT_SYNCED: Final = "gpuslice has not heard of all pods, nodes and cards yet"
_OUTCOMES: Final = {False: "answered", True: "error"}


class Source(Protocol):
    """What is needed of `cache.Cache`."""

    @property
    def synced(self) -> bool: ...


class Extender:
    """See the module."""

    def __init__(
        self, verbs: Verbs, binder: Binder, gate: Gate, source: Source, metrics: Metrics
    ) -> None:
        self._verbs = verbs
        self._binder = binder
        self._gate = gate
        self._source = source
        self._calls: Final[Mapping[str, Callable[[bytes], Awaitable[tuple[bytes, str]]]]] = {
            "/filter": self._filter,
            "/prioritize": self._prioritize,
            "/bind": self._bind,
        }
        self._seconds: Final = {
            (path, refused): metrics.verb_duration.labels(path[1:], _OUTCOMES[refused])
            for path in self._calls
            for refused in _OUTCOMES
        }

    async def serve(self, host: str, port: int) -> web.ServerRunner:
        """Serves until the runner's `cleanup`. Port 0: any; see the runner's addresses."""
        runner = web.ServerRunner(
            web.Server(
                self._handle,
                request_factory=_request,
                access_log=None,
                keepalive_timeout=KEEP_S,
            ),
            shutdown_timeout=LEAVE_S,
        )
        await runner.setup()
        await web.TCPSite(runner, host, port).start()
        return runner

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        call = self._calls.get(request.path)
        if call is None or request.method != "POST":
            text = f"there are POST {', '.join(self._calls)}\n"
            return web.Response(status=404, text=text)
        began_s = time.perf_counter()
        body = await request.read()
        try:
            said, refused = await call(body)
        except ArgumentsError as problem:
            said, refused = error(str(problem)), str(problem)
        except Exception as fault:
            _LOG.exception(Line("verb failed", verb=request.path))
            refused = f"gpuslice failed: {fault!r}"
            said = error(refused)
        self._seconds[request.path, bool(refused)].observe(time.perf_counter() - began_s)
        return web.Response(body=said, content_type="application/json")

    async def _refusal(self) -> str:
        if not self._source.synced:
            return NOT_SYNCED
        return await self._gate.admit()

    async def _filter(self, body: bytes) -> tuple[bytes, str]:
        refused = await self._refusal()
        return (error(refused), refused) if refused else (self._verbs.filter(body), "")

    async def _prioritize(self, body: bytes) -> tuple[bytes, str]:
        """Where this is an error, kube-scheduler goes on without our scores. Who may not write has
        refused the filter before."""
        if not self._source.synced:
            return error(NOT_SYNCED), NOT_SYNCED
        return self._verbs.prioritize(body), ""

    async def _bind(self, body: bytes) -> tuple[bytes, str]:
        wanted = arguments.binding(body)
        refused = await self._refusal() or await self._binder.bind(wanted)
        if refused:
            pod = f"{wanted.namespace}/{wanted.name}"
            _LOG.warning(Line("not bound", pod=pod, node=wanted.node, error=refused))
        return error(refused), refused


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(
        message, payload, protocol, writer, task, loop, client_max_size=MOST_BYTES
    )
