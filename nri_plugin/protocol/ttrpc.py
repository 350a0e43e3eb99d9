"""Calls over one byte stream: `[length u32][stream u32][type u8][flags u8]`, then protobuf.

The header is big endian. This module implements both roles, with unary calls only, as NRI uses
them. A client's stream numbers are odd and ascending, and never reused. A response has its
request's number. Unknown message types and flags are ignored, as in the Go implementation. A whole
request that violates a rule gets an error status, and the connection stays open. Then only this
request fails. Without the connection the runtime would continue without us.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from nri_plugin.messages import ttrpc_pb2
from nri_plugin.protocol.errors import LocalProtocolError, RemoteProtocolError
from nri_plugin.protocol.session_events import Code

HEADER: Final = struct.Struct(">IIBB")
DATA_LIMIT_BYTES: Final = 4 << 20
REQUEST: Final = 1
RESPONSE: Final = 2
MAX_STREAM: Final = (1 << 32) - 1

MAX_PENDING: Final = 64
"""Limit of open calls. A runtime's locks allow one call at a time, and one validation per
container."""
STATUS_LIMIT_BYTES: Final = 16 << 10
"""Limit of an error's text, which the runtime repeats in its log and in the pod's events."""


class Frame(NamedTuple):
    """One received message. data: None if it exceeded DATA_LIMIT_BYTES and was skipped."""

    stream: int
    type: int
    data: bytes | None


class Call(NamedTuple):
    """A request of the runtime. Our answer must have the same stream number."""

    stream: int
    service: str
    method: str
    payload: bytes
    timeout_ns: int
    """The time until the caller's deadline. 0: the caller has none."""


class Reply(NamedTuple):
    """The answer to our call. Code 0 is success."""

    stream: int
    code: int
    text: str
    payload: bytes


def encode(stream: int, kind: int, data: bytes) -> bytes:
    """Return a message with its header. data: at most DATA_LIMIT_BYTES."""
    return HEADER.pack(len(data), stream, kind, 0) + data


def sendable(text: str) -> str:
    """Truncate an error's text to STATUS_LIMIT_BYTES. Replace characters that UTF-8 cannot encode,
    for example in a path."""
    return text.encode("utf-8", "replace")[:STATUS_LIMIT_BYTES].decode("utf-8", "ignore")


class FrameParser:
    """Splits one connection's bytes into messages. Buffers at most one incomplete message."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._excess_bytes = 0
        """The remaining bytes of a message over the limit, which are skipped."""
        self._skipped = Frame(0, 0, None)

    def feed(self, data: bytes) -> list[Frame]:
        """Return the messages that `data` completes. `data` may begin and end anywhere."""
        frames = []
        buffer, at = self._buffer, 0
        buffer += data
        while True:
            if self._excess_bytes:
                here = min(self._excess_bytes, len(buffer) - at)
                at += here
                self._excess_bytes -= here
                if self._excess_bytes:
                    break
                frames.append(self._skipped)
            if len(buffer) - at < HEADER.size:
                break
            length, stream, kind, _flags = HEADER.unpack_from(buffer, at)
            if length > DATA_LIMIT_BYTES:
                at += HEADER.size
                self._excess_bytes, self._skipped = length, Frame(stream, kind, None)
                continue
            end = at + HEADER.size + length
            if len(buffer) < end:
                break
            frames.append(Frame(stream, kind, bytes(buffer[at + HEADER.size : end])))
            at = end
        del buffer[:at]
        return frames


class _Side:
    """The common part of Server and Client: the open calls, and the messages to send."""

    def __init__(self) -> None:
        self._parser = FrameParser()
        self._pending: set[int] = set()
        self._outgoing: list[bytes] = []

    def messages_to_send(self) -> list[bytes]:
        """Return the ttrpc messages that must be sent, and forget them."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing


class Server(_Side):
    """The called side of one connection."""

    _last_stream = 0

    def receive_data(self, data: bytes) -> list[Call]:
        """Return the calls that `data` completes. The caller must answer each by reply() or fail().
        Invalid calls are answered here. The caller must always send messages_to_send() next."""
        calls = map(self._call, self._parser.feed(data))
        return [call for call in calls if call is not None]

    def reply(self, stream: int, payload: bytes) -> bool:
        """Answer a call. Return False if the reply was too large, and an error was sent instead."""
        self._settle(stream)
        data = ttrpc_pb2.Response(payload=payload).SerializeToString() if payload else b""
        if len(data) <= DATA_LIMIT_BYTES:
            self._outgoing.append(encode(stream, RESPONSE, data))
            return True
        self._send_status(
            stream,
            Code.RESOURCE_EXHAUSTED,
            f"a reply of {len(data)} bytes, where at most {DATA_LIMIT_BYTES} are allowed",
        )
        return False

    def fail(self, stream: int, code: int, text: str) -> None:
        self._settle(stream)
        self._send_status(stream, code, text)

    def _settle(self, stream: int) -> None:
        if stream not in self._pending:
            raise LocalProtocolError(f"no call is open on stream {stream}: answered twice?")
        self._pending.remove(stream)

    def _send_status(self, stream: int, code: int, text: str) -> None:
        status = ttrpc_pb2.Status(code=code, message=sendable(text))
        data = ttrpc_pb2.Response(status=status).SerializeToString()
        self._outgoing.append(encode(stream, RESPONSE, data))

    def _call(self, frame: Frame) -> Call | None:
        problem = self._problem(frame)
        if problem is not None:
            self._send_status(frame.stream, *problem)
            return None
        if frame.type != REQUEST or frame.data is None:
            return None
        self._last_stream = frame.stream
        try:
            request = ttrpc_pb2.Request.FromString(frame.data)
        except DecodeError as error:
            text = f"the request cannot be decoded: {error}"
            self._send_status(frame.stream, Code.INVALID_ARGUMENT, text)
            return None
        self._pending.add(frame.stream)
        return Call(
            frame.stream,
            request.service,
            request.method,
            request.payload,
            max(0, request.timeout_nano),
        )

    def _problem(self, frame: Frame) -> tuple[Code, str] | None:
        if frame.data is None:
            return Code.RESOURCE_EXHAUSTED, f"a message of more than {DATA_LIMIT_BYTES} bytes"
        if frame.stream % 2 == 0:
            return Code.INVALID_ARGUMENT, "a stream that a client opens must be odd"
        if frame.type != REQUEST:
            return None
        if frame.stream <= self._last_stream:
            return Code.INVALID_ARGUMENT, "a stream may not be used again, and must increase"
        if len(self._pending) >= MAX_PENDING:
            return Code.RESOURCE_EXHAUSTED, f"{MAX_PENDING} calls are open already"
        return None


class Client(_Side):
    """The calling side of one connection."""

    _next_stream = 1

    def call(self, service: str, method: str, payload: bytes, timeout_ns: int) -> int:
        """Start a call. Return its stream number, which the Reply will contain."""
        if self._next_stream > MAX_STREAM:
            raise LocalProtocolError("this connection has no stream numbers left")
        data = ttrpc_pb2.Request(
            service=service, method=method, payload=payload, timeout_nano=timeout_ns
        ).SerializeToString()
        if len(data) > DATA_LIMIT_BYTES:
            raise LocalProtocolError(
                f"a request of {len(data)} bytes, where at most {DATA_LIMIT_BYTES} are allowed"
            )
        stream = self._next_stream
        self._next_stream += 2
        self._pending.add(stream)
        self._outgoing.append(encode(stream, REQUEST, data))
        return stream

    def receive_data(self, data: bytes) -> list[Reply]:
        """Return the replies in `data`. Raises RemoteProtocolError for a reply to no open call."""
        replies = map(self._reply, self._parser.feed(data))
        return [reply for reply in replies if reply is not None]

    def _reply(self, frame: Frame) -> Reply | None:
        if frame.type != RESPONSE:
            return None
        if frame.stream not in self._pending:
            raise RemoteProtocolError(f"a response on stream {frame.stream}, where no call is open")
        self._pending.remove(frame.stream)
        if frame.data is None:
            text = f"the response has more than {DATA_LIMIT_BYTES} bytes"
            return Reply(frame.stream, Code.RESOURCE_EXHAUSTED, text, b"")
        try:
            response = ttrpc_pb2.Response.FromString(frame.data)
        except DecodeError as error:
            raise RemoteProtocolError(f"a response that cannot be decoded: {error}") from error
        status = response.status
        return Reply(frame.stream, status.code, status.message, response.payload)
