"""A file after the steps of an update."""

from __future__ import annotations

from collections.abc import Iterable

from gpuslice.contract.layout import Write


def apply(data: bytes, writes: Iterable[Write]) -> bytes:
    buffer = bytearray(data)
    for write in writes:
        buffer[write.offset : write.offset + len(write.data)] = write.data
    return bytes(buffer)
