"""An HTTP/1.1 server over asyncio: connections and their timeouts. `kube.http1` parses HTTP.

A connection has one request at a time; bytes that arrive meanwhile stay unread. A client that sends
or reads slowly is disconnected after a timeout and does not delay other clients. A disconnect
before the answer does not cancel the request's work. Why not aiohttp: see docs/adr/0026.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

from kube.http1 import CONTINUE, TEXT, Refused, Request, Requests, Response, encoded
from kube.log_lines import Line

_LOG: Final = logging.getLogger(__name__)

Answer = Callable[[Request], Response | Coroutine[Any, Any, Response]]
"""Returns a coroutine if the answer has to wait. Raises nothing."""

TIMEOUT_S: Final = 30.0
"""Timeout for the rest of a started request, and for a client that does not read its answer. Idle
connections are kept: the kernel reports when the peer is gone."""
LEAVE_S: Final = 1.0
"""How long `close` waits for pending answers."""
_NEVER: Final = float("inf")


class Server:
    """After `start`, call `close`. most_bytes: limit of a request's body."""

    def __init__(
        self,
        answer: Answer,
        most_bytes: int,
        timeout_s: float = TIMEOUT_S,
        leave_s: float = LEAVE_S,
    ) -> None:
        self.answer = answer
        self.most_bytes = most_bytes
        self.under_way: set[asyncio.Task[None]] = set()
        self.connections: set[_Connection] = set()
        self.address = ("", 0)
        """Set by `start`."""
        self._timeout_s = timeout_s
        self._leave_s = leave_s
        self._server: asyncio.Server | None = None
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> None:
        """Port 0: any free port. Raises OSError if the port is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), host, port)
        for each in self._server.sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.address = self._server.sockets[0].getsockname()[:2]
        self._sweeping = asyncio.create_task(self._sweep(), name="slow clients")

    async def close(self) -> None:
        """Accepts no new request; waits LEAVE_S for pending answers."""
        if self._server is None or self._sweeping is None:
            return
        self._server.close()
        self._sweeping.cancel()
        for connection in tuple(self.connections):
            connection.leave()
        if self.under_way:
            await asyncio.wait(self.under_way, timeout=self._leave_s)
        for task in self.under_way:
            task.cancel()
        for connection in tuple(self.connections):
            connection.abort()
        await asyncio.gather(self._sweeping, *self.under_way, return_exceptions=True)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._timeout_s / 4)
            for connection in tuple(self.connections):
                if loop.time() - connection.waiting_s > self._timeout_s:
                    connection.give_up()


class _Connection(asyncio.Protocol):
    """waiting_s: since when the server waits for the client; inf: it does not."""

    def __init__(self, server: Server) -> None:
        self.waiting_s = _NEVER
        self._server = server
        self._receiver = Requests(server.most_bytes)
        self._busy = False
        """A request is being answered."""
        self._halted = False
        """The client does not read."""
        self._paused = False
        """The server has paused reading."""
        self._is_last = False
        """The next answer is the last one."""
        self._over = False
        """All further input is ignored."""

    # --- events of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._over = True
        self._server.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._receiver.feed(data)
        if self._busy or self._halted:
            self._paused = True
            self._transport.pause_reading()
        else:
            self._go_on()

    def eof_received(self) -> bool:
        """A client that has closed its sending side may still read an answer."""
        self._is_last = True
        return self._busy

    def pause_writing(self) -> None:
        self._halted = True
        self._wait()

    def resume_writing(self) -> None:
        self._halted, self.waiting_s = False, _NEVER
        self._go_on()

    # --- called by the server

    def leave(self) -> None:
        self._is_last = True
        if not self._busy:
            self._close()

    def abort(self) -> None:
        self._transport.abort()

    def give_up(self) -> None:
        """The client has exceeded its timeout."""
        if self._over or self._halted:
            self._transport.abort()
        else:
            self._refuse(Refused(408, "the rest of the request did not come"))

    # --- requests

    def _go_on(self) -> None:
        while not (self._busy or self._halted or self._over):
            try:
                request = self._receiver.next()
            except Refused as refused:
                self._refuse(refused)
                return
            if request is None:
                self._listen()
                return
            self.waiting_s = _NEVER
            self._is_last |= not request.keeps
            self._begin(request)

    def _listen(self) -> None:
        if self._receiver.take_waiting():
            self._transport.write(CONTINUE)
        if self._receiver.midway and self.waiting_s == _NEVER:
            self._wait()
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def _wait(self) -> None:
        self.waiting_s = asyncio.get_running_loop().time()

    def _begin(self, request: Request) -> None:
        response = self._server.answer(request)
        if isinstance(response, Response):
            self._send(response)
            return
        self._busy = True
        task = asyncio.create_task(self._finish(response))
        self._server.under_way.add(task)
        task.add_done_callback(self._server.under_way.discard)

    async def _finish(self, work: Coroutine[Any, Any, Response]) -> None:
        try:
            response = await work
        except BaseException:
            self._transport.abort()
            raise
        self._busy = False
        if not self._over:
            self._send(response)
            self._go_on()

    def _send(self, response: Response) -> None:
        """An answer with an error status is the connection's last: a client that requests an
        unknown path is not kube-scheduler."""
        self._is_last |= response.status != 200
        self._transport.write(encoded(response, keeps=not self._is_last))
        if self._is_last:
            self._close()

    def _refuse(self, refused: Refused) -> None:
        """Reads and discards further input until the client has received the answer; closing
        earlier would send a reset and lose the answer."""
        _LOG.warning(Line("HTTP request refused", status=refused.status, error=refused))
        self._transport.write(
            encoded(Response(f"{refused}\n".encode(), TEXT, refused.status), False)
        )
        self._over = True
        self._wait()
        self._transport.write_eof()

    def _close(self) -> None:
        self._over = True
        self._transport.close()
