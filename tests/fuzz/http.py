"""Bytes of an HTTP peer: kube-scheduler's, as the extender's server reads them, and the API
server's, as a POST reads its answer. Sockets are left out.

Documented exceptions: none escapes a connection. Invariants: the split of a stream never matters,
the server's output is a sequence of answers, and a POST ends with an answer or NotAnswered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from functools import cache
from typing import Any, Final, TypeVar

from kube.http1 import CONTINUE, Answer, Answers, Request, Response
from kube.posts import NotAnswered
from kube.posts import _Connection as _Post
from scheduler.server import Server
from scheduler.server import _Connection as _Served
from tests.fuzz.choices import Choices, cut

_T = TypeVar("_T")
_MOST: Final = 256
WORDS: Final = (
    *("POST /filter HTTP/1.1\r\n", "GET / HTTP/1.0\r\n", "HTTP/1.1 201 Created\r\n", "\r\n\r\n"),
    *("Content-Length: ", "Transfer-Encoding: chunked\r\n", "Connection: close\r\n", "\r\n0\r\n"),
    *("Expect: 100-continue\r\n", "Upgrade: h2c\r\nConnection: Upgrade\r\n", "HTTP/1.1 103 \r\n"),
)


class _Transport(asyncio.Transport):
    """Records the written bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_over = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_over
        self.written += data

    def write_eof(self) -> None:
        self.is_over = True

    def close(self) -> None:
        self.is_over = True

    def abort(self) -> None:
        self.is_over = True

    def pause_reading(self) -> None:
        raise AssertionError("an answer that is there at once needs no pause")


def requests(data: bytes) -> None:
    at_once, in_pieces = _run(_served([data])), _run(_served(cut(data, Choices(data))))
    assert _read(at_once) == _read(in_pieces)


def _read(written: bytes) -> Sequence[Answer]:
    """The answers. Of a refusal only that it is one: which fault llhttp finds first depends on how
    the bytes were cut."""
    answers, found = Answers(1 << 20), []
    answers.feed(written)
    while (answer := answers.next()) is not None:
        is_refusal = answer.status not in (200, 405)
        found.append(answer._replace(status=400, body=b"") if is_refusal else answer)
    assert len(found) == written.count(b"HTTP/1.1 ") and not answers.midway
    return found


def answers(data: bytes) -> None:
    """The answer does not depend on the cut. Whether the connection is used again does: blank lines
    behind an answer are the parser's to skip, and unsolicited where they come later."""
    (at_once, _), (in_pieces, _) = (
        _run(_answered(pieces)) for pieces in ([data], cut(data, Choices(data)))
    )
    assert at_once == in_pieces


async def _served(pieces: Iterable[bytes]) -> bytes:
    """The server's output, except CONTINUE, which depends on the bytes received so far."""
    connection, transport = _Served(Server(_answer, _MOST)), _Transport()
    connection.connection_made(transport)
    for piece in pieces:
        connection.data_received(piece)
    if not transport.is_over:
        connection.eof_received()
    connection.connection_lost(None)
    return bytes(transport.written).replace(CONTINUE, b"")


def _answer(request: Request) -> Response:
    assert len(request.body) <= _MOST
    return Response(b"{}", status=200 if request.method == "POST" else 405)


async def _answered(pieces: Iterable[bytes]) -> tuple[Answer | None, bool]:
    """The answer, and whether the connection is reused."""
    connection, transport = _Post(), _Transport()
    connection.connection_made(transport)
    asking = asyncio.ensure_future(connection.exchange(b"a request", 60.0))
    await asyncio.sleep(0)
    for piece in pieces:
        connection.data_received(piece)
    is_usable = connection.is_usable
    connection.connection_lost(None)
    try:
        return await asking, is_usable
    except NotAnswered:
        return None, False


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def _run(work: Coroutine[Any, Any, _T]) -> _T:
    return _loop().run_until_complete(work)
