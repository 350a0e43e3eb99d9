"""HTTP endpoint in its own thread: /healthz, /readyz and /metrics.

The thread has an event loop of its own. Therefore /healthz answers even if the agent's loop hangs.
aiohttp implements HTTP. The number of connections is bounded, and at the limit a new connection
closes the oldest one. While another process uses the address, the thread retries. Containers get
their share even if the endpoint is not served.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from gpuslice.kube.addresses import host_port
from gpuslice.kube.log_lines import Line
from nri_plugin.metrics import Metrics
from nri_plugin.readiness import Readiness
from nri_plugin.settings import Address

_LOG: Final = logging.getLogger(__name__)
_CLIENTS_LOG: Final = logging.getLogger(f"{__name__}.clients")
_CLIENTS_LOG.setLevel(logging.CRITICAL)
"""aiohttp logs each malformed request as an error, with its text."""

_CONNECTIONS: Final = 128
_BACKLOG: Final = 64
"""The limit of connections that wait to be accepted. It is below _CONNECTIONS. Therefore the
connections that are accepted together cannot close each other before they are answered."""
_RETRY_S: Final = 5.0
_TEXT: Final = "text/plain; charset=utf-8"


@dataclass(eq=False)
class Endpoint:
    """The HTTP endpoint. It serves from `start` until `close` or the end of the process."""

    address: Address
    readiness: Readiness
    metrics: Metrics
    served: str | None = None
    """The address in use, with the port that the kernel chose for port 0. None: not served."""
    _closed: threading.Event = field(default_factory=threading.Event)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _leaving: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self) -> None:
        threading.Thread(target=self._serve, name="endpoint", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(RuntimeError):  # the endpoint's event loop is closed
            self._loop.call_soon_threadsafe(self._leaving.set)

    def answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        """Return the status, content type and body for a path."""
        if path == "/metrics":
            return HTTPStatus.OK, CONTENT_TYPE_LATEST, self.metrics.render()
        if path == "/healthz":
            hang = self.readiness.hang
            return _verdict([] if hang is None else [hang])
        if path == "/readyz":
            return _verdict(self.readiness.problems, self.readiness.notes)
        text = "path: must be one of /healthz, /readyz, /metrics\n"
        return HTTPStatus.NOT_FOUND, _TEXT, text.encode()

    async def _respond(self, request: web.BaseRequest) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            raise web.HTTPMethodNotAllowed(request.method, ("GET", "HEAD"))
        status, kind, body = self.answer(request.path)
        return web.Response(status=status, body=body, headers={"Content-Type": kind})

    def _serve(self) -> None:
        logged = False
        while not self._closed.is_set():
            try:
                listener = _listener(self.address)
            except OSError as error:
                if not logged:
                    place = _written(self.address)
                    _LOG.error(Line("endpoint not served", address=place, error=error.strerror))
                logged = True
                self._closed.wait(_RETRY_S)
                continue
            with contextlib.closing(self._loop):
                self._loop.run_until_complete(self._serve_at(listener))
            return

    async def _serve_at(self, listener: socket.socket) -> None:
        server = web.Server(self._respond, access_log=None, logger=_CLIENTS_LOG)
        latest: deque[web.RequestHandler] = deque()

        def connected() -> asyncio.Protocol:
            if len(latest) == _CONNECTIONS:
                latest.popleft().force_close()  # no effect on a closed connection
            client = server()
            latest.append(client)
            return client

        serving = await self._loop.create_server(connected, sock=listener, backlog=_BACKLOG)
        chosen = isinstance(self.address, Path)
        self.served = _written(self.address if chosen else listener.getsockname()[:2])
        _LOG.info(Line("endpoint served", address=self.served))
        async with serving:
            await self._leaving.wait()
            serving.close()
            await server.shutdown(0)


def _verdict(problems: Sequence[str], notes: Sequence[str] = ()) -> tuple[HTTPStatus, str, bytes]:
    status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
    return status, _TEXT, ("\n".join((*(problems or ["ok"]), *notes)) + "\n").encode()


def _written(address: Address) -> str:
    if isinstance(address, Path):
        return f"unix:{address}"
    return host_port(*address)


def _listener(address: Address) -> socket.socket:
    """Return a listening socket. Raises OSError if the address is not available."""
    if isinstance(address, Path):
        return _unix_listener(address)
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)  # fails if another socket began to listen after the bind
    except BaseException:
        listener.close()
        raise
    return listener


def _unix_listener(path: Path) -> socket.socket:
    """Return a listening socket at `path`. Replaces an earlier agent's socket file."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    aside.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(aside))
        aside.chmod(0o600)
        aside.rename(path)
    except BaseException:
        listener.close()
        raise
    return listener
