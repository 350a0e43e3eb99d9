"""POSTs to the API server, each on a connection that it has for itself: for the one write of a pod.

aiohttp's client makes of each request a URL, multi-dictionaries, timers and a stream; of what
binding a pod costs that was the largest part. See docs/adr/0029. Nothing is sent twice: what became
of what was not answered is not known here. A connection is kept for the next one, the one used last
first. Knows nothing of Kubernetes; `kube.client` says what it means.
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
"""Not used for longer, a connection is not used again: what is between may have forgotten it."""
KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)
"""A host that is gone without a word is noticed after half a minute."""
_MOST_BYTES: Final = 8 << 20
"""Of an answer: more than the largest object that the API server keeps."""
_MOST_KEPT: Final = 64
_PORTS: Final = {"http": 80, "https": 443}


class NotSent(Exception):
    """No connection: nothing was asked."""


class NotAnswered(Exception):
    """It was sent, or a part of it, and no answer came that can be read."""


class Posts:
    """server: a URL. context: None without TLS. fields: of each request beside Host and its
    length. Raises ValueError for a server or fields that are none. After use you must `close`."""

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
            raise ValueError("expected https://HOST or http://HOST")
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
        """What is being asked goes on."""
        self._is_closed = True
        for each in self._kept:
            each.close()
        self._kept.clear()

    async def post(self, path: str, body: bytes, timeout_s: float) -> Answer:
        """Raises NotSent, NotAnswered; ValueError for a path that is none."""
        data = request(b"POST", self._prefix + path, self._fields, body)
        until_s = self._clock() + timeout_s
        connection = self._take() or await self._connect(timeout_s)
        try:
            answer = await connection.ask(data, until_s - self._clock())
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
    """used_s: when it was kept."""

    def __init__(self) -> None:
        self.used_s = 0.0
        self.is_usable = True
        """Another request may be sent."""
        self._answers = Answers(_MOST_BYTES)
        self._asked: asyncio.Future[Answer] | None = None

    async def ask(self, data: bytes, timeout_s: float) -> Answer:
        loop = asyncio.get_running_loop()
        asked: asyncio.Future[Answer] = loop.create_future()
        self._asked = asked
        timer = loop.call_later(timeout_s, self._fail, f"no answer within {timeout_s:.1f} s")
        self._transport.write(data)
        try:
            return await asked
        finally:
            timer.cancel()
            self._asked = None

    def close(self) -> None:
        self.is_usable = False
        self._transport.abort()

    # --- what happens to it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._answers.feed(data)
            answer = self._answers.next()
        except Refused as refused:
            self._fail(f"what came is no answer: {refused}")
            return
        if self._asked is None or self._asked.done():
            self._fail("something came that was not asked for")
        elif answer is not None:
            self.is_usable = answer.keeps and not self._answers.midway
            self._asked.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the connection ended: {error or 'without a word'}")

    def _fail(self, why: str) -> None:
        self.close()
        if self._asked is not None and not self._asked.done():
            self._asked.set_exception(NotAnswered(why))
