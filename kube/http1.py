"""HTTP/1.1 without I/O, as a server and as a client of small answers speak it: bytes in, requests
or answers out, and the other way round.

Less than RFC 9112 allows, and nothing else: a head has one form, and a body has a length or chunks.
What is neither is refused, and then the connection is over, since nobody knows where the next one
begins. What is kept of what is not whole yet is bounded. Knows no path of ours; the sockets are
`scheduler.server`'s and `kube.posts`'.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
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
_STATUS: Final = re.compile(
    rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: [\t -~\x80-\xff]*)?\r\n(" + _FIELDS + rb")\r\n"
)
_TRAILERS: Final = re.compile(_FIELDS + rb"\r\n")
_FIELD: Final = re.compile(
    rb"^(content-length|transfer-encoding|connection|expect|host):([^\r]*)", re.I | re.M
)
"""Those that say how the request is to be read."""
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,8})[\t ]*(?:;[\t -~\x80-\xff]*)?")
_PATH: Final = re.compile(rb"/[!-~]*")
_BODILESS: Final = frozenset({b"204", b"304"})
_LENGTH: Final = re.compile(rb"[0-9]{1,19}")

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_OK: Final = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b"
_OTHER: Final = b"HTTP/1.1 %d %b\r\n%bContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b"

JSON: Final = b"application/json"
TEXT: Final = b"text/plain; charset=utf-8"


class Refused(Exception):
    """The other side's fault. After this the connection must be closed; status: what a server
    answers."""

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


class Answer(NamedTuple):
    """keeps: whether the connection may carry another request after it."""

    status: int
    body: bytes
    keeps: bool


class _Head(NamedTuple):
    """start: a request's method and path, an answer's status. length: of the body; None: it comes
    in chunks. waits: for CONTINUE."""

    start: Sequence[str]
    keeps: bool
    length: int | None
    waits: bool = False


class _Receiver:
    """Of one connection. most_bytes: of a body. read: a head; raises Refused. After `feed` you must
    take what `next` has."""

    def __init__(self, most_bytes: int, read: Callable[[bytes], _Head]) -> None:
        self._read = read
        self._most_bytes = most_bytes
        self._buffer = bytearray()
        self._searched = 0
        self._head: _Head | None = None
        self._chunks = bytearray()
        self._waits = False

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def _next(self) -> tuple[_Head, bytes] | None:
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
        return head, body

    @property
    def midway(self) -> bool:
        """A part of one is there."""
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
        head = self._read(bytes(buffer[: end + 4]))
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


class Requests(_Receiver):
    """See above."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(most_bytes, _read_request)

    def next(self) -> Request | None:
        """None: it is not whole yet. Raises Refused."""
        found = self._next()
        if found is None:
            return None
        head, body = found
        method, path = head.start
        return Request(method, path, body, head.keeps)


class Answers(_Receiver):
    """See above."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(most_bytes, _read_answer)

    def next(self) -> Answer | None:
        """None: it is not whole yet. Raises Refused."""
        while (found := self._next()) is not None:
            head, body = found
            status = int(head.start[0])
            if status >= HTTPStatus.OK:
                return Answer(status, body, head.keeps)
        return None


@lru_cache(_HEADS)
def _read_request(text: bytes) -> _Head:
    """Raises Refused."""
    found = _HEAD.fullmatch(text)
    if found is None:
        raise Refused(400, "the head is none of HTTP/1.1")
    method, path, minor, listed = found.groups()
    is_newer, fields = minor == b"1", _fields(listed)
    if is_newer and b"," in fields.get(b"host", b","):
        raise Refused(400, "Host: expected one")
    expected = fields.get(b"expect", b"").lower()
    if expected not in (b"", b"100-continue"):
        raise Refused(417, "Expect: only 100-continue is known")
    length = _length(fields, is_newer, b"0")
    waits = bool(expected) and is_newer
    return _Head((method.decode(), path.decode()), _keeps(fields, is_newer), length, waits)


def _read_answer(text: bytes) -> _Head:
    """Raises Refused; also for a body that ends with the connection: it may be cut off."""
    found = _STATUS.fullmatch(text)
    if found is None:
        raise Refused(400, "the head is none of HTTP/1.1")
    minor, status, listed = found.groups()
    is_newer, fields = minor == b"1", _fields(listed)
    start, keeps = (status.decode(),), _keeps(fields, is_newer)
    if status[:1] == b"1" or status in _BODILESS:
        return _Head(start, keeps, 0)
    return _Head(start, keeps, _length(fields, is_newer, b""))


def _fields(listed: bytes) -> Mapping[bytes, bytes]:
    """Those that we read, in small letters; of one that is there twice both."""
    fields: dict[bytes, bytes] = {}
    for name, value in _FIELD.findall(listed):
        key, said = name.lower(), value.strip(b" \t")
        fields[key] = said if key not in fields else fields[key] + b", " + said
    return fields


def _keeps(fields: Mapping[bytes, bytes], is_newer: bool) -> bool:
    options = fields.get(b"connection", b"").lower().replace(b" ", b"").split(b",")
    return is_newer and b"close" not in options


def _length(fields: Mapping[bytes, bytes], is_newer: bool, unsaid: bytes) -> int | None:
    """None: in chunks. unsaid: what stands for a length that is not there."""
    coding, written = fields.get(b"transfer-encoding"), fields.get(b"content-length", unsaid)
    if coding is None:
        if not _LENGTH.fullmatch(written):
            raise Refused(400, "Content-Length: expected one number")
        return int(written)
    if b"content-length" in fields or not is_newer:
        raise Refused(400, "Transfer-Encoding: not beside a length, nor in HTTP/1.0")
    if coding.lower() != b"chunked":
        raise Refused(501, "Transfer-Encoding: only chunked is known")
    return None


def fields_of(values: Mapping[str, str]) -> bytes:
    """The fields of a request. Raises ValueError for what would make other fields of them."""
    text = "".join(f"{name}: {value}\r\n" for name, value in values.items()).encode()
    if not re.fullmatch(_FIELDS, text) or text.count(b"\r\n") != len(values):
        raise ValueError(f"the value of {' or '.join(values)} has a character that HTTP has not")
    return text


def request(method: bytes, path: str, fields: bytes, body: bytes) -> bytes:
    """Raises ValueError for a path that is none. fields: of `fields_of`."""
    at = path.encode()
    if not _PATH.fullmatch(at):
        raise ValueError(f"{path!r}: expected a path, what is not ASCII quoted")
    return b"%b %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (
        method,
        at,
        fields,
        len(body),
        body,
    )


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
