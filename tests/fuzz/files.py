"""Targets that parse files: a container's grant and region after a tenant changed them, a driver
root's ld.so.cache, and the program that an image starts.

The documented exception is RegionError. Invariants: after an update, a grant file has the written
values, whatever it contained. The parser of a program reads only the program's headers.
"""

from __future__ import annotations

import binascii
import contextlib
import struct
from functools import cache
from typing import Final

from gpuslice.contract import grant_file, names, region_file
from gpuslice.gpu import library_cache
from nri_plugin.host import entrypoint
from tests.fuzz.choices import Choices

_READ_MOST: Final = 16 << 10
_MACHINE: Final = 62
_HEADER_BYTES: Final = region_file.HEADER.size
_WRITTEN: Final = grant_file.Grant(7, (grant_file.Gpu("GPU-7", 1 << 30, 50, 0),))


@cache
def _region(gpu_count: int) -> bytes:
    """Return a new region's bytes before its slots, which readers of the counters read."""
    return region_file.fresh(gpu_count, 7)[: region_file.Geometry(gpu_count).slots_offset]


def regions(data: bytes) -> None:
    """Read a region of any bytes, or a valid one with a few bytes changed and a valid checksum."""
    choices = Choices(data)
    kind = choices.byte()
    raw = bytearray(_region(1 + choices.byte() % names.MAX_GPUS) if kind & 1 else choices.rest())
    if kind & 1:
        del raw[choices.whole(3) or len(raw) :]
        for _ in range(choices.byte() % 8):
            place = choices.whole(2) % (len(raw) + 1)
            raw[place : place + 1] = choices.take(1)
    if kind & 3 == 3 and len(raw) >= _HEADER_BYTES:
        _correct_checksum(raw, _HEADER_BYTES - 4)
    with contextlib.suppress(region_file.RegionError):
        assert 1 <= len(region_file.uses(bytes(raw))) <= names.MAX_GPUS


def _correct_checksum(raw: bytearray, end: int) -> None:
    raw[end : end + 4] = struct.pack("<I", binascii.crc32(raw[:end]))


def grant_files(data: bytes) -> None:
    choices = Choices(data)
    if choices.byte() & 1:
        raw = bytearray(b"".join(_copy(choices) for _ in range(2)))
    else:
        raw = bytearray(choices.rest().ljust(grant_file.FILE_BYTES, b"\0"))
    read = grant_file.decode(bytes(raw))
    assert read is None or 1 <= len(read.gpus) <= names.MAX_GPUS
    if any(raw[at : at + 8] == b"\xff" * 8 for at in (0, grant_file.COPY_STRIDE)):
        return  # the last possible sequence number, which no agent runs long enough to write
    for write in grant_file.update(bytes(raw), _WRITTEN):
        raw[write.offset : write.offset + len(write.data)] = write.data
    assert grant_file.decode(bytes(raw[: grant_file.FILE_BYTES])) == _WRITTEN


def _copy(choices: Choices) -> bytes:
    gpus = [
        grant_file.Gpu(f"GPU-{n}", choices.whole(8), choices.byte(), n)
        for n in range(1 + choices.byte() % names.MAX_GPUS)
    ]
    raw = bytearray(grant_file.fresh(grant_file.Grant(choices.whole(8), gpus)))
    raw[:8] = choices.take(8).ljust(8, b"\0")
    for _ in range(choices.byte() % 6):
        place = choices.whole(2) % grant_file.CHECKSUM_OFFSET
        raw[place] = choices.byte()
    if choices.byte() % 4:
        _correct_checksum(raw, grant_file.CHECKSUM_OFFSET)
    return bytes(raw[: grant_file.COPY_STRIDE])


def library_caches(data: bytes) -> None:
    """Parse the bytes as a cache file, and then as the contents after a valid header."""
    count = data[0] if data else 0
    header = b"glibc-ld.so.cache1.1" + struct.pack("<II5I", count, len(data), 0, 0, 0, 0, 0)
    for file in (data, header + data):
        for path in library_cache.find(file, "libcuda.so.1"):
            assert isinstance(path, str)


def programs(data: bytes) -> None:
    asked = 0

    def read(offset: int, size: int) -> bytes:
        nonlocal asked
        assert offset >= 0 and size >= 0
        asked += size
        return data[offset : offset + size]

    found = entrypoint.parse(read)
    assert asked <= _READ_MOST
    if isinstance(found, entrypoint.Program):
        why = entrypoint.program_out_of_reach(found, "program", "loader", _MACHINE, forwarded=False)
        assert why or (found.wide and found.machine == _MACHINE and found.interpreter)
