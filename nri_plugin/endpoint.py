"""The agent over HTTP, in a thread of its own: /healthz, /readyz, /metrics for probes and people.

The agent's event loop does not wait for it, and it does not wait for that loop: it answers also
when that one hangs, which is what /healthz is for. Whoever may connect learns what the metrics say,
and can change nothing, nor keep others away: a client has a deadline for all it says and reads, and
where all places are taken the oldest client of the peer that has most of them goes. The address is
tried again while another process has it; containers get their share whether or not it is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST

from contract.log_lines import Line
from nri_plugin.metrics import Metrics
from nri_plugin.readiness import Readiness

_LOG: Final = logging.getLogger(__name__)

Address = Path | tuple[str, int]
"""A Unix socket's path, or host and port."""

_CLIENT_S: Final = 5.0
"""From the connection to the last byte of the answer."""
_PLACES: Final = 128
_BACKLOG: Final = 64
"""Waiting to be accepted; fewer than there are places, so that a client that has said all when it
connects is answered before a flood of others takes its place."""
_HEAD_BYTES: Final = 1 << 13
_BREATH_S: Final = 0.1
_RETRY_S: Final = 5.0
_TEXT: Final = "text/plain; charset=utf-8"
_CREDENTIALS: Final = struct.Struct("3i")


class Endpoint:
    """Serves from `start` on, until the process ends or `close`."""

    def __init__(self, address: Address, readiness: Readiness, metrics: Metrics) -> None:
        self._address = address
        self._readiness = readiness
        self._metrics = metrics
        self._closed = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._leaving = asyncio.Event()
        self._clients: dict[asyncio.Task[Any], object] = {}
        self._served: str | None = None

    def start(self) -> None:
        threading.Thread(target=self._serve, name="endpoint", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._leaving.set)

    @property
    def served(self) -> str | None:
        """Where it is served, with the port that was chosen where 0 was asked for; None: not."""
        return self._served

    def answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        """Status, content type and body of a page."""
        if path == "/metrics":
            return HTTPStatus.OK, CONTENT_TYPE_LATEST, self._metrics.render()
        if path == "/healthz":
            hang = self._readiness.hang
            return _verdict([] if hang is None else [hang])
        if path == "/readyz":
            return _verdict(self._readiness.problems, self._readiness.notes)
        text = "there are /healthz, /readyz and /metrics\n"
        return HTTPStatus.NOT_FOUND, _TEXT, text.encode()

    def _serve(self) -> None:
        said = False
        while not self._closed.is_set():
            try:
                listener = _listener(self._address)
            except OSError as error:
                if not said:
                    place = _written(self._address)
                    _LOG.error(Line("endpoint not served", address=place, error=error.strerror))
                said = True
                self._closed.wait(_RETRY_S)
                continue
            with contextlib.closing(self._loop):
                self._loop.run_until_complete(self._serve_at(listener))
            return

    async def _serve_at(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(
            self._client, sock=listener, limit=_HEAD_BYTES, backlog=_BACKLOG
        )
        chosen = isinstance(self._address, Path)
        self._served = _written(self._address if chosen else listener.getsockname()[:2])
        _LOG.info(Line("endpoint", address=self._served))
        async with server:
            await self._leaving.wait()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.sleep(0)  # who was just accepted begins, and so has an end
            for client in self._clients:
                client.cancel()
            await asyncio.wait(others, timeout=_BREATH_S)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._clients) >= _PLACES:
            evicted = longest_of_most(self._clients)
            del self._clients[evicted]
            evicted.cancel()
        self._clients[task] = _peer(writer.get_extra_info("socket"))
        try:
            async with asyncio.timeout(_CLIENT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._reply(head))
                writer.close()
                await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            _LOG.debug(Line("endpoint client failed", error=repr(error)))
        except asyncio.CancelledError:
            _LOG.debug(Line("endpoint client evicted"))
        finally:
            self._clients.pop(task, None)
            writer.transport.abort()

    def _reply(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        if method in ("GET", "HEAD"):
            status, kind, body = self.answer(rest.partition(" ")[0].partition("?")[0])
        else:
            status, kind, body = HTTPStatus.NOT_IMPLEMENTED, _TEXT, b"there are GET and HEAD\n"
        lines = (
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Connection: close",
        )
        written = "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"
        return written if method == "HEAD" else written + body


def longest_of_most(clients: Mapping[asyncio.Task[Any], object]) -> asyncio.Task[Any]:
    """Of the peer that has most clients, the one that has been there longest; not of none."""
    most = Counter(clients.values()).most_common(1)[0][0]
    return next(client for client, peer in clients.items() if peer == most)


def _peer(client: socket.socket) -> object:
    """Who has connected: the address, or the process at the other end of a Unix socket."""
    try:
        if client.family == socket.AF_UNIX:
            size = _CREDENTIALS.size
            said = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            return _CREDENTIALS.unpack(said)[0]
        return client.getpeername()[0]
    except OSError:  # gone already
        return None


def _verdict(problems: Sequence[str], notes: Sequence[str] = ()) -> tuple[HTTPStatus, str, bytes]:
    status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
    return status, _TEXT, ("\n".join((*(problems or ["ok"]), *notes)) + "\n").encode()


def _written(address: Address) -> str:
    if isinstance(address, Path):
        return f"unix:{address}"
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listener(address: Address) -> socket.socket:
    """Raises OSError where it cannot be had."""
    if isinstance(address, Path):
        return _unix_listener(address)
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)  # a port that another one listens at is told only here
    except BaseException:
        listener.close()
        raise
    return listener


def _unix_listener(path: Path) -> socket.socket:
    """A file that a dead agent left is replaced; so is a living one's, whose turn ends."""
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
