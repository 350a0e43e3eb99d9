"""The daemon's side of wire.h: the same numbers and structs, and an incremental reader.

No socket and no clock. Bytes in, requests out; malformed input raises WireError, which ends that
connection and nothing else. A test compares this file with the header.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Self

PROTOCOL: Final = 4
PAYLOAD_BYTES: Final = 65536

_HEAD: Final = struct.Struct("<II")
HEAD_BYTES: Final = _HEAD.size


class WireError(Exception):
    """The peer sent what the simulated driver's libraries never send."""


class Op(enum.IntEnum):
    HELLO = 1
    CONTEXT_CREATE = 2
    CONTEXT_DESTROY = 3
    MEMORY_ALLOC = 4
    MEMORY_FREE = 5
    MEMORY_INFO = 6
    PROCESSES = 7
    UTILIZATION = 8
    PROCESS_UTILIZATION = 9
    MEMORY_EXPORT = 10
    MEMORY_IMPORT = 11
    FAULT = 12
    MEMORY_KEEP = 13


class Status(enum.IntEnum):
    OK = 0
    OUT_OF_MEMORY = 1
    INVALID_VALUE = 2
    NOT_FOUND = 3
    NOT_SUPPORTED = 4
    GPU_LOST = 5


class Role(enum.IntEnum):
    CUDA = 1
    NVML = 2


# C's name of each struct -> its packed form. The fields are in the order of the header.
STRUCTS: Final = {
    "sim_request": _HEAD,
    "sim_reply": _HEAD,
    "sim_hello": struct.Struct("<II"),
    "sim_gpu": struct.Struct("<16s96s80sQQQ12I16sII"),
    "sim_id": struct.Struct("<Q"),
    "sim_context": struct.Struct("<QII"),
    "sim_alloc": struct.Struct("<QQ"),
    "sim_import": struct.Struct("<QQ"),
    "sim_keep": struct.Struct("<QII"),
    "sim_imported": struct.Struct("<QQ"),
    "sim_memory": struct.Struct("<QQ"),
    "sim_process": struct.Struct("<QII"),
    "sim_call_name": struct.Struct("<64s"),
    "sim_fault": struct.Struct("<QiI"),
    "sim_utilization": struct.Struct("<II"),
    "sim_process_utilization": struct.Struct("<II"),
}

# The payloads of each operation, request and reply; None: nothing.
_REQUEST_STRUCT: Final[dict[Op, str | None]] = {
    Op.HELLO: "sim_hello",
    Op.CONTEXT_CREATE: None,
    Op.CONTEXT_DESTROY: "sim_id",
    Op.MEMORY_ALLOC: "sim_alloc",
    Op.MEMORY_FREE: "sim_id",
    Op.MEMORY_INFO: None,
    Op.PROCESSES: None,
    Op.UTILIZATION: None,
    Op.PROCESS_UTILIZATION: None,
    Op.MEMORY_EXPORT: "sim_id",
    Op.MEMORY_IMPORT: "sim_import",
    Op.FAULT: "sim_call_name",
    Op.MEMORY_KEEP: "sim_keep",
}


class Request(NamedTuple):
    op: Op
    fields: tuple[Any, ...]

    @classmethod
    def decode(cls, op: int, payload: bytes) -> Self:
        """Raises WireError for an unknown operation or a payload of another size."""
        try:
            known = Op(op)
        except ValueError:
            raise WireError(
                f"operation: invalid value {op}: must be {min(Op)} to {max(Op)}"
            ) from None
        name = _REQUEST_STRUCT[known]
        expected = STRUCTS[name].size if name else 0
        if len(payload) != expected:
            raise WireError(f"{known.name} carries {expected} bytes, not {len(payload)}")
        return cls(known, STRUCTS[name].unpack(payload) if name else ())

    def encode(self) -> bytes:
        name = _REQUEST_STRUCT[self.op]
        payload = STRUCTS[name].pack(*self.fields) if name else b""
        return _HEAD.pack(self.op, len(payload)) + payload


def pack(name: str, *fields: int | bytes) -> bytes:
    """A payload: the struct that the header calls `name`."""
    return STRUCTS[name].pack(*fields)


def reply(status: Status, payload: bytes = b"") -> bytes:
    """A whole reply. An oversized payload is the daemon's error, not the peer's."""
    if len(payload) > PAYLOAD_BYTES:
        raise ValueError(f"reply of {len(payload)} bytes")
    return _HEAD.pack(status, len(payload)) + payload


class Reader:
    """Splits a stream into requests; holds at most one incomplete message."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Request]:
        """Yield the requests that `data` completes. Consume them all before feeding more."""
        self._buffer += data
        while len(self._buffer) >= HEAD_BYTES:
            op, length = _HEAD.unpack_from(self._buffer)
            if length > PAYLOAD_BYTES:
                raise WireError(f"message of {length} bytes, at most {PAYLOAD_BYTES} are allowed")
            end = HEAD_BYTES + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[HEAD_BYTES:end])
            del self._buffer[:end]
            yield Request.decode(op, payload)
