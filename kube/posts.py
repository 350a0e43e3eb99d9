"""POSTs and PATCHes to the API server, of which each pod needs one or two: at most one request per
connection at a time.

Separate from aiohttp's client, whose URLs, multi-dictionaries, timers and streams per request were
the largest part of the cost of binding a pod (docs/adr/0029). No request is sent twice: after a
missing answer the outcome is unknown here. Idle connections are reused, most recently used first,
whichever method used them; the callers bound how many there are. Contains nothing specific to
Kubernetes; `kube.client` interprets the answers.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Final, cast
from urllib.parse import urlsplit

from kube.http1 import Answer, Answers, Refused, fields_of, request

KEEP_S: Final = 60.0
"""Idle time after which a connection is not reused: a middlebox may have dropped its state."""
KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)
"""A host that disappears without closing the connection is detected after half a minute."""
_MOST_BYTES: Final = 8 << 20
"""Limit of an answer: more than the largest object that the API server stores."""
_MOST_KEPT: Final = 64
_PORTS: Final = {"http": 80, "https": 443}


class NotSent(Exception):
    """No connection: nothing was sent."""


class NotAnswered(Exception):
    """The request was sent, in whole or in part, and no readable answer arrived."""


class Posts:
    """The client. server: a URL. context: None without TLS. fields: headers of each request beside
    Host, Content-Length and the request's own. Raises ValueError for an invalid server or fields.
    Must be closed."""

    def __init__(
        self,
        server: str,
        context: ssl.SSLContext | None,
        server_name: str,
        fields: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        url = urlsplit(server)
        if url.scheme not in _PORTS or not url.hostname:
            raise ValueError("invalid value: must be https://HOST or http://HOST")
        self._host = url.hostname
        self._port = url.port or _PORTS[url.scheme]
        self._prefix = url.path.rstrip("/")
        self._context = context
        self._server_name = server_name
        self._fields = fields_of({"Host": url.netloc, **fields})
        self._clock = clock
        self._kept: list[_Connection] = []
        self._is_closed = False

    def close(self) -> None:
        """Close idle connections; requests in progress continue."""
        self._is_closed = True
        for each in self._kept:
            each.close()
        self._kept.clear()

    async def send(
        self, method: bytes, path: str, fields: bytes, body: bytes, timeout_s: float
    ) -> Answer:
        """fields: this request's own, from `fields_of`. Raises NotSent, NotAnswered; ValueError for
        an invalid path."""
        data = request(method, self._prefix + path, self._fields + fields, body)
        until_s = self._clock() + timeout_s
        connection = self._take() or await self._connect(timeout_s)
        try:
            answer = await connection.exchange(data, until_s - self._clock())
        except asyncio.CancelledError:
            connection.close()
            raise
        if connection.is_usable and not self._is_closed and len(self._kept) < _MOST_KEPT:
            connection.used_s = self._clock()
            self._kept.append(connection)
        else:
            connection.close()
        return answer

    def _take(self) -> _Connection | None:
        while self._kept:
            connection = self._kept.pop()
            if connection.is_usable and self._clock() - connection.used_s < KEEP_S:
                return connection
            connection.close()
        return None

    async def _connect(self, timeout_s: float) -> _Connection:
        name = self._server_name or self._host
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                transport, made = await loop.create_connection(
                    _Connection,
                    self._host,
                    self._port,
                    ssl=self._context,
                    server_hostname=name if self._context else None,
                )
        except TimeoutError as error:
            raise NotSent(
                f"{self._host}:{self._port}: no connection within {timeout_s:.1f} s"
            ) from error
        except OSError as error:
            raise NotSent(f"{self._host}:{self._port}: {error}") from error
        connected = transport.get_extra_info("socket")
        for level, option, value in KEEPALIVE:
            connected.setsockopt(level, option, value)
        return made


class _Connection(asyncio.Protocol):
    """used_s: when it became idle."""

    def __init__(self) -> None:
        self.used_s = 0.0
        self.is_usable = True
        """Whether another request may be sent."""
        self._answers = Answers(_MOST_BYTES)
        self._response: asyncio.Future[Answer] | None = None

    async def exchange(self, data: bytes, timeout_s: float) -> Answer:
        loop = asyncio.get_running_loop()
        response: asyncio.Future[Answer] = loop.create_future()
        self._response = response
        timer = loop.call_later(timeout_s, self._fail, f"no answer within {timeout_s:.1f} s")
        self._transport.write(data)
        try:
            return await response
        finally:
            timer.cancel()
            self._response = None

    def close(self) -> None:
        self.is_usable = False
        self._transport.abort()

    # --- callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._answers.feed(data)
            answer = self._answers.next()
        except Refused as refused:
            self._fail(f"not an HTTP response: {refused}")
            return
        if self._response is None or self._response.done():
            self._fail("unrequested bytes on an idle connection")
        elif answer is not None:
            self.is_usable = answer.keeps and not self._answers.midway
            self._response.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the connection ended: {error or 'no response'}")

    def _fail(self, why: str) -> None:
        self.close()
        if self._response is not None and not self._response.done():
            self._response.set_exception(NotAnswered(why))
