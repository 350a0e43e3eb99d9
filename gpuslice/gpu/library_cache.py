"""Parses ld.so.cache, in which a root directory's dynamic loader looks up libraries by soname.

nvidia-ctk reads the same format, so nvidia-ctk and the agent find the same libraries. A damaged
cache counts as empty.
Source: glibc sysdeps/generic/dl-cache.h; the fields have the machine's byte order, here
little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

PLACE: Final = "etc/ld.so.cache"

_MAGIC: Final = b"glibc-ld.so.cache1.1"
_OLD_MAGIC: Final = b"ld.so-1.7.0\0"
_OLD_HEADER: Final = struct.Struct("<12sI")
_OLD_ENTRY_BYTES: Final = 12
_HEADER: Final = struct.Struct("<20sII5I")
"""Magic with version, number of entries, length of the strings. We ignore the other fields."""
_ENTRY: Final = struct.Struct("<iIIIQ")
"""Flags, offset of the soname, offset of the path, and two fields that we ignore."""
_ALIGNMENT: Final = 8
_FLAGS_64_BIT: Final = frozenset({0x0301, 0x0303, 0x0A01, 0x0A03})
"""Flags of 64-bit libraries for x86_64 and aarch64, each with and without the flag for glibc."""


def find(cache: bytes, soname: str) -> Iterator[str]:
    """Yield the paths of the 64-bit libraries with this soname, in the loader's order."""
    start = _start(cache)
    if len(cache) < start + _HEADER.size:
        return
    magic, count, *_ = _HEADER.unpack_from(cache, start)
    if magic != _MAGIC or len(cache) < start + _HEADER.size + count * _ENTRY.size:
        return
    wanted = soname.encode()
    if wanted + b"\0" not in cache:  # skip the loop below, which takes milliseconds
        return
    for index in range(count):
        at = start + _HEADER.size + index * _ENTRY.size
        flags, key, value, _, _ = _ENTRY.unpack_from(cache, at)
        if flags in _FLAGS_64_BIT and _text(cache, start + key) == wanted:
            yield _text(cache, start + value).decode(errors="surrogateescape")


def _start(cache: bytes) -> int:
    """Return where the table of the current format starts: after one of the old format, if any."""
    if not cache.startswith(_OLD_MAGIC) or len(cache) < _OLD_HEADER.size:
        return 0
    _, count = _OLD_HEADER.unpack_from(cache)
    end: int = _OLD_HEADER.size + count * _OLD_ENTRY_BYTES
    return -(-end // _ALIGNMENT) * _ALIGNMENT


def _text(cache: bytes, start: int) -> bytes:
    end = cache.find(b"\0", start)
    return cache[start:end] if end >= 0 else b""
