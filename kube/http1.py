"""HTTP/1.1 without I/O, for a server and for a client of small answers.

Converts bytes to requests and answers, and back. httptools (llhttp, Node.js's parser) parses the
grammar; this module limits the memory, and rejects what neither side needs: transfer codings other
than chunked, upgrades, an answer that ends with its connection.
Invariant: after a refusal the connection must be closed. `scheduler.server` and `kube.posts` own
the sockets.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, Generic, NamedTuple, TypeVar

from httptools import HttpParserError, HttpRequestParser, HttpResponseParser

MOST_HEAD_BYTES: Final = 16 << 10
"""Limit for a head including its trailers."""
_FIELD: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*\r\n")
_PATH: Final = re.compile(r"/[!-~]*")

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_OK: Final = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b"
_OTHER: Final = b"HTTP/1.1 %d %b\r\n%bContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b"

JSON: Final = b"application/json"
TEXT: Final = b"text/plain; charset=utf-8"


class Refused(Exception):
    """The peer violated the protocol; the connection must be closed. status: a server's answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Request(NamedTuple):
    """keeps: whether the connection may carry another request afterwards."""

    method: str
    path: str
    body: bytes
    keeps: bool


class Response(NamedTuple):
    """allow: the permitted methods, for a 405."""

    body: bytes
    kind: bytes = JSON
    status: int = 200
    allow: str = ""


class Answer(NamedTuple):
    """keeps: whether the connection may carry another request afterwards."""

    status: int
    body: bytes
    keeps: bool


Message = TypeVar("Message", Request, Answer)


class _Receiver(ABC, Generic[Message]):
    """Parser state of one connection. most_bytes: limit of a body. The methods on_* are httptools'
    callbacks; an exception in one ends the parse."""

    _parser: HttpRequestParser | HttpResponseParser

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._ready: deque[Message] = deque()
        self._refused: Refused | None = None
        self._begun = False
        """Part of a message has been received."""
        self._unread_bytes = 0
        """Bytes fed since the last complete head, body part or message; httptools may hold them."""
        self._body = bytearray()

    def feed(self, data: bytes) -> None:
        if self._refused is not None:
            return
        self._unread_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            cause = error.__context__
            if not isinstance(cause, Refused):
                cause = Refused(400, f"malformed HTTP/1.1: {error}")
            self._refused = cause
        else:
            if self._unread_bytes > MOST_HEAD_BYTES:
                self._refused = _too_large()

    def next(self) -> Message | None:
        """Return the next message, or None if it is incomplete. Raises Refused."""
        if self._ready:
            return self._ready.popleft()
        if self._refused is not None:
            raise self._refused
        return None

    @property
    def midway(self) -> bool:
        """Whether data was received that `next` has not returned."""
        return self._begun or bool(self._ready) or self._refused is not None

    def on_message_begin(self) -> None:
        self._begun = True

    def on_headers_complete(self) -> None:
        self._unread_bytes = 0
        if self._parser.should_upgrade():
            raise Refused(501, "Upgrade: not supported")

    def on_body(self, part: bytes) -> None:
        self._unread_bytes = 0
        self._bound(len(self._body) + len(part))
        self._body += part

    def on_message_complete(self) -> None:
        self._begun, self._unread_bytes = False, 0
        # HTTP/1.0 keeps a connection only if the answer says so, and ours does not.
        keeps = self._parser.should_keep_alive() and self._parser.get_http_version() == "1.1"
        self._finish(bytes(self._body), keeps)
        self._body.clear()

    @abstractmethod
    def _finish(self, body: bytes, keeps: bool) -> None:
        """Handle a complete message."""

    def _bound(self, length: int) -> None:
        if length > self._most_bytes:
            raise Refused(413, f"the body has more than {self._most_bytes} bytes")


class Requests(_Receiver[Request]):
    """Parser of requests. After `feed`, call `next` until it returns None."""

    _parser: HttpRequestParser

    def __init__(self, most_bytes: int) -> None:
        super().__init__(most_bytes)
        self._parser = HttpRequestParser(self)
        self._path = b""
        self._head_bytes = 0
        self._waits = False

    def take_waiting(self) -> bool:
        """Whether the client waits for CONTINUE before it sends the body; True once."""
        waits, self._waits = self._waits, False
        return waits

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._path, self._head_bytes = b"", 0

    def on_url(self, part: bytes) -> None:
        self._path += part
        self._count(len(part))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called for headers and trailers."""
        self._count(len(name) + len(value))
        match name.lower():
            case b"content-length":
                self._bound(int(value))
            case b"transfer-encoding" if value.strip().lower() != b"chunked":
                raise Refused(501, "Transfer-Encoding: must be chunked")
            case b"expect" if value.strip().lower() != b"100-continue":
                raise Refused(417, "Expect: must be 100-continue")
            case b"expect":
                self._waits = True

    def _finish(self, body: bytes, keeps: bool) -> None:
        self._waits = False
        method = self._parser.get_method().decode("ascii")
        self._ready.append(Request(method, self._path.decode("latin-1"), body, keeps))

    def _count(self, head_bytes: int) -> None:
        self._head_bytes += head_bytes
        if self._head_bytes > MOST_HEAD_BYTES:
            raise _too_large()


class Answers(_Receiver[Answer]):
    """Parser of answers. After `feed`, call `next` until it returns None.

    An answer that ends with its connection may be truncated and never counts as complete. The size
    of heads is bounded, but not to the byte, because no header is read."""

    _parser: HttpResponseParser

    def __init__(self, most_bytes: int) -> None:
        super().__init__(most_bytes)
        self._parser = HttpResponseParser(self)

    def _finish(self, body: bytes, keeps: bool) -> None:
        status = self._parser.get_status_code()
        if status >= HTTPStatus.OK:
            self._ready.append(Answer(status, body, keeps))
        else:
            self._begun = True  # an interim answer: another one follows


def _too_large() -> Refused:
    return Refused(431, f"the head has more than {MOST_HEAD_BYTES} bytes")


def fields_of(values: Mapping[str, str]) -> bytes:
    """Return the header fields of a request. Raises ValueError if a value could inject a field."""
    fields = {name: f"{name}: {value}\r\n".encode() for name, value in values.items()}
    for name, field in fields.items():
        if not _FIELD.fullmatch(field):
            raise ValueError(f"header {name}: invalid value: must have no control characters")
    return b"".join(fields.values())


def request(method: bytes, path: str, fields: bytes, body: bytes) -> bytes:
    """Return a request. Raises ValueError for an invalid path. fields: from `fields_of`."""
    if not _PATH.fullmatch(path):
        raise ValueError(f"path: invalid value {path!r}: must be an absolute path, percent-encoded")
    return b"%b %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (
        method,
        path.encode(),
        fields,
        len(body),
        body,
    )


def encoded(response: Response, keeps: bool = True) -> bytes:
    """Return the response's bytes. keeps: False if the connection must be closed afterwards."""
    body, kind = response.body, response.kind
    if keeps and response.status == 200:
        return _OK % (kind, len(body), body)
    status = HTTPStatus(response.status)
    fields = f"Allow: {response.allow}\r\n" if response.allow else ""
    fields += "" if keeps else "Connection: close\r\n"
    phrase = status.phrase.encode()
    return _OTHER % (status, phrase, fields.encode(), kind, len(body), body)
