"""The daemon's side of wire.h: its messages, and an incremental reader.

No socket and no clock; the header is read once. Bytes in, requests out. Malformed input raises
WireError, which ends only the sender's connection. A test compares the numbers with the header's.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Self

from simgpu.headers import Header

_HEADER: Final = Header("wire.h")
PROTOCOL: Final = _HEADER.constants["SIM_PROTOCOL"]
PAYLOAD_BYTES: Final = _HEADER.constants["SIM_PAYLOAD_BYTES"]


class WireError(Exception):
    """The peer sent something that the simulated driver's libraries never send."""


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
    LIMITS_SET = 14
    LIMITS_GET = 15


class Status(enum.IntEnum):
    OK = 0
    OUT_OF_MEMORY = 1
    INVALID_VALUE = 2
    NOT_FOUND = 3
    NOT_SUPPORTED = 4
    GPU_LOST = 5
    NO_PERMISSION = 6


class Role(enum.IntEnum):
    CUDA = 1
    NVML = 2


STRUCTS: Final = _HEADER.packed()
"""The structs by their names in C."""
_HEAD: Final = STRUCTS["sim_request"]
HEAD_BYTES: Final = _HEAD.size

_REQUEST_STRUCT: Final = {
    Op.HELLO: "sim_hello",
    Op.CONTEXT_DESTROY: "sim_id",
    Op.MEMORY_ALLOC: "sim_alloc",
    Op.MEMORY_FREE: "sim_id",
    Op.MEMORY_EXPORT: "sim_id",
    Op.MEMORY_IMPORT: "sim_import",
    Op.FAULT: "sim_call_name",
    Op.MEMORY_KEEP: "sim_keep",
    Op.LIMITS_SET: "sim_limits",
    Op.LIMITS_GET: "sim_cgroup",
}
"""The struct of each request that has a payload."""


class Request(NamedTuple):
    op: Op
    fields: tuple[Any, ...]

    @classmethod
    def decode(cls, op: int, payload: bytes) -> Self:
        """Decode a request. Raises WireError for an unknown operation or a wrong payload size."""
        try:
            known = Op(op)
        except ValueError:
            raise WireError(
                f"operation: invalid value {op}: must be {min(Op)} to {max(Op)}"
            ) from None
        name = _REQUEST_STRUCT.get(known)
        expected = STRUCTS[name].size if name else 0
        if len(payload) != expected:
            raise WireError(f"{known.name} carries {expected} bytes, not {len(payload)}")
        return cls(known, STRUCTS[name].unpack(payload) if name else ())

    def encode(self) -> bytes:
        name = _REQUEST_STRUCT.get(self.op)
        payload = STRUCTS[name].pack(*self.fields) if name else b""
        return _HEAD.pack(self.op, len(payload)) + payload


def pack(name: str, *fields: int | bytes) -> bytes:
    """Return a payload: the fields packed as the C struct `name`."""
    return STRUCTS[name].pack(*fields)


def reply(status: Status, payload: bytes = b"") -> bytes:
    """Return a whole reply. Raises ValueError for an oversized payload, which is our own error."""
    if len(payload) > PAYLOAD_BYTES:
        raise ValueError(f"reply of {len(payload)} bytes")
    return _HEAD.pack(status, len(payload)) + payload


class Reader:
    """Splits a stream into requests. Holds at most one incomplete message."""

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
