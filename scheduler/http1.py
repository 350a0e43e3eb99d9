"""HTTP/1.1 as a server speaks it, without I/O: bytes in, requests out; an answer in, bytes out.

Less than RFC 9112 allows, and nothing else: a head has one form (`_HEAD`), and a body has a length
or chunks. What is neither is refused, and then the connection is over, since nobody knows where its
next request begins. What is kept of a request that is not whole yet is bounded. Knows no verb of
ours; the sockets are `scheduler.server`'s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Final, NamedTuple

MOST_HEAD_BYTES: Final = 16 << 10
_MOST_LINE_BYTES: Final = 256
"""Of a chunk's first line."""
_HEADS: Final = 128
"""That are known again: those of one client are alike but for their length."""

_NAME: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_FIELDS: Final = rb"(?:" + _NAME + rb":[\t -~\x80-\xff]*\r\n)*"
_HEAD: Final = re.compile(rb"(" + _NAME + rb") ([!-~]+) HTTP/1\.([01])\r\n(" + _FIELDS + rb")\r\n")
_TRAILERS: Final = re.compile(_FIELDS + rb"\r\n")
_FIELD: Final = re.compile(
    rb"^(content-length|transfer-encoding|connection|expect|host):([^\r]*)", re.I | re.M
)
"""Those that say how the request is to be read."""
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,8})[\t ]*(?:;[\t -~\x80-\xff]*)?")
_LENGTH: Final = re.compile(rb"[0-9]{1,19}")

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_OK: Final = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b"
_OTHER: Final = b"HTTP/1.1 %d %b\r\n%bContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b"

JSON: Final = b"application/json"
TEXT: Final = b"text/plain; charset=utf-8"


class Refused(Exception):
    """The client's fault. After this the connection must be closed, the answer sent."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Request(NamedTuple):
    """keeps: whether the connection may carry another one after it."""

    method: str
    path: str
    body: bytes
    keeps: bool


class Response(NamedTuple):
    """allow: the methods there are, of a 405."""

    body: bytes
    kind: bytes = JSON
    status: int = 200
    allow: str = ""


class _Head(NamedTuple):
    """length: of the body; None: it comes in chunks. waits: for CONTINUE."""

    method: str
    path: str
    keeps: bool
    length: int | None
    waits: bool


class Receiver:
    """Of one connection. most_bytes: of a body. After `feed` you must take what `next` has."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._buffer = bytearray()
        self._searched = 0
        self._head: _Head | None = None
        self._chunks = bytearray()
        self._waits = False

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> Request | None:
        """None: it is not whole yet. Raises Refused."""
        if self._head is None:
            self._head = self._read_head() if self._buffer else None
            if self._head is None:
                return None
            self._waits = self._head.waits
        head = self._head
        body = self._read_chunks() if head.length is None else self._read_bytes(head.length)
        if body is None:
            return None
        self._head = None
        return Request(head.method, head.path, body, head.keeps)

    @property
    def midway(self) -> bool:
        """A part of a request is there."""
        return bool(self._buffer) or self._head is not None

    def take_waiting(self) -> bool:
        """Whether the client waits for CONTINUE before it sends the body; said once."""
        waits, self._waits = self._waits and self._head is not None, False
        return waits

    def _read_head(self) -> _Head | None:
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n", self._searched, MOST_HEAD_BYTES)
        if end < 0:
            if len(buffer) >= MOST_HEAD_BYTES:
                raise Refused(431, f"the head has more than {MOST_HEAD_BYTES} bytes")
            self._searched = max(0, len(buffer) - 3)
            return None
        head = _read(bytes(buffer[: end + 4]))
        del buffer[: end + 4]
        self._searched = 0
        self._bound(head.length or 0)
        return head

    def _bound(self, length: int) -> None:
        if length > self._most_bytes:
            raise Refused(413, f"the body has more than {self._most_bytes} bytes")

    def _read_bytes(self, length: int) -> bytes | None:
        if len(self._buffer) < length:
            return None
        with memoryview(self._buffer) as view:
            body = bytes(view[:length])
        del self._buffer[:length]
        return body

    def _read_chunks(self) -> bytes | None:
        """Takes whole chunks out of the buffer; with the last one the trailers, which say nothing
        to us."""
        buffer = self._buffer
        while True:
            end = buffer.find(b"\r\n", 0, _MOST_LINE_BYTES)
            if end < 0 and len(buffer) < _MOST_LINE_BYTES:
                return None
            sized = _CHUNK.fullmatch(buffer, 0, max(end, 0))
            if sized is None:
                raise Refused(400, "a chunk without a size")
            size = int(sized[1], 16)
            if not size:
                return self._all_chunks(end + 2)
            self._bound(len(self._chunks) + size)
            after = end + 2 + size
            if len(buffer) < after + 2:
                return None
            if buffer[after : after + 2] != b"\r\n":
                raise Refused(400, "a chunk that is longer than its size")
            self._chunks += buffer[end + 2 : after]
            del buffer[: after + 2]

    def _all_chunks(self, begin: int) -> bytes | None:
        """begin: of the trailers."""
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n", begin - 2, begin + MOST_HEAD_BYTES)
        if end < 0:
            if len(buffer) >= begin + MOST_HEAD_BYTES:
                raise Refused(431, f"the trailers have more than {MOST_HEAD_BYTES} bytes")
            return None
        if not _TRAILERS.fullmatch(buffer, begin, end + 4):
            raise Refused(400, "what follows the last chunk is none of HTTP/1.1")
        body = bytes(self._chunks)
        del buffer[: end + 4]
        self._chunks.clear()
        return body


@lru_cache(_HEADS)
def _read(text: bytes) -> _Head:
    """Raises Refused."""
    found = _HEAD.fullmatch(text)
    if found is None:
        raise Refused(400, "the head is none of HTTP/1.1")
    method, path, minor, listed = found.groups()
    is_newer = minor == b"1"
    fields: dict[bytes, bytes] = {}
    for name, value in _FIELD.findall(listed):
        key, said = name.lower(), value.strip(b" \t")
        fields[key] = said if key not in fields else fields[key] + b", " + said
    if is_newer and b"," in fields.get(b"host", b","):
        raise Refused(400, "Host: expected one")
    expected = fields.get(b"expect", b"").lower()
    if expected not in (b"", b"100-continue"):
        raise Refused(417, "Expect: only 100-continue is known")
    options = fields.get(b"connection", b"").lower().replace(b" ", b"").split(b",")
    keeps = is_newer and b"close" not in options
    length = _length(fields, is_newer)
    return _Head(method.decode(), path.decode(), keeps, length, bool(expected) and is_newer)


def _length(fields: Mapping[bytes, bytes], is_newer: bool) -> int | None:
    coding, written = fields.get(b"transfer-encoding"), fields.get(b"content-length", b"0")
    if coding is None:
        if not _LENGTH.fullmatch(written):
            raise Refused(400, "Content-Length: expected one number")
        return int(written)
    if b"content-length" in fields or not is_newer:
        raise Refused(400, "Transfer-Encoding: not beside a length, nor in HTTP/1.0")
    if coding.lower() != b"chunked":
        raise Refused(501, "Transfer-Encoding: only chunked is known")
    return None


def encoded(response: Response, keeps: bool = True) -> bytes:
    """keeps: whether the connection goes on; else it must be closed after this."""
    body, kind = response.body, response.kind
    if keeps and response.status == 200:
        return _OK % (kind, len(body), body)
    status = HTTPStatus(response.status)
    fields = f"Allow: {response.allow}\r\n" if response.allow else ""
    fields += "" if keeps else "Connection: close\r\n"
    phrase = status.phrase.encode()
    return _OTHER % (status, phrase, fields.encode(), kind, len(body), body)
