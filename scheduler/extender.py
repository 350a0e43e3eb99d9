"""kube-scheduler's extender over HTTP: POST /filter, /prioritize, /bind.

Knows HTTP and who is answered, and decides nothing. What cannot be answered is answered with an
error, never with an empty success: kube-scheduler tries the pod again. For 127.0.0.1 alone: who can
connect can bind pods.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, Protocol

from contract.log_lines import Line
from scheduler import arguments
from scheduler.arguments import ArgumentsError
from scheduler.binder import Binder
from scheduler.gate import Gate
from scheduler.http1 import TEXT, Request, Response
from scheduler.metrics import Metrics
from scheduler.server import Server
from scheduler.verbs import Verbs, error

_LOG: Final = logging.getLogger(__name__)

MOST_BYTES: Final = 64 << 20
"""Of a call: the largest pod that the API server takes, and a hundred thousand names."""
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

    async def serve(self, host: str, port: int) -> Server:
        """Serves until the server's `close`. Port 0: any; see the server's address."""
        server = Server(self._answer, MOST_BYTES)
        await server.start(host, port)
        return server

    def _answer(self, request: Request) -> Response | Coroutine[Any, Any, Response]:
        verb = request.path
        if verb not in self._calls:
            text = f"there are POST {', '.join(self._calls)}\n"
            return Response(text.encode(), TEXT, 404)
        if request.method != "POST":
            return Response(b"a verb is POSTed\n", TEXT, 405, allow="POST")
        return self._called(verb, request.body)

    async def _called(self, verb: str, body: bytes) -> Response:
        began_s = time.perf_counter()
        try:
            said, refused = await self._calls[verb](body)
        except ArgumentsError as problem:
            said, refused = error(str(problem)), str(problem)
        except Exception as fault:
            _LOG.exception(Line("verb failed", verb=verb))
            refused = f"gpuslice failed: {fault!r}"
            said = error(refused)
        self._seconds[verb, bool(refused)].observe(time.perf_counter() - began_s)
        return Response(said)

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
