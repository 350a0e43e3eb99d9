"""Fat binaries for tests, as compilers make them: entries, packed or plain, and their wrappers."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any, Final

PTX: Final = 1
ELF: Final = 2
_PLAIN, _LZ4, _ZSTD = 0, 0x2000, 0x8000


def _lz4(plain: bytes) -> bytes:
    library = ctypes.CDLL("liblz4.so.1")
    room = ctypes.create_string_buffer(library.LZ4_compressBound(len(plain)))
    size = library.LZ4_compress_default(plain, room, len(plain), len(room))
    return room.raw[:size]


def _zstd(plain: bytes) -> bytes:
    library: Any = ctypes.CDLL("libzstd.so.1")
    library.ZSTD_compressBound.restype = library.ZSTD_compress.restype = ctypes.c_size_t
    room = ctypes.create_string_buffer(library.ZSTD_compressBound(ctypes.c_size_t(len(plain))))
    size = library.ZSTD_compress(
        room, ctypes.c_size_t(len(room)), plain, ctypes.c_size_t(len(plain)), 19
    )
    return room.raw[:size]


_PACK: Final = {"lz4": (_LZ4, _lz4), "zstd": (_ZSTD, _zstd)}


def entry(kind: int, target: int, plain: bytes, packing: str = "", head_bytes: int = 64) -> bytes:
    """One image for sm_TARGET. Heads of 64 bytes and more occur; the excess is not read."""
    flags, stored, packed_bytes = _PLAIN, plain, 0
    if packing:
        flags, pack = _PACK[packing]
        stored = pack(plain)
        packed_bytes = len(stored)
    stored += bytes(-len(stored) % 8)
    head = struct.pack(
        "<HHIIIIIHHIIIQQQ",
        *(kind, 0x101, head_bytes, len(stored), 0, packed_bytes, 0, 0, 9, target, 0, 0),
        *(flags, 0, len(plain) if packing else 0),
    )
    return head + bytes(head_bytes - len(head)) + stored


def fatbin(entries: Sequence[bytes]) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


class Wrapper:
    """The compiled program's argument to the driver: it points to fat binaries."""

    def __init__(self, version: int, *fatbins: bytes) -> None:
        self._kept = [ctypes.create_string_buffer(one, len(one)) for one in fatbins]
        places = [ctypes.addressof(one) for one in self._kept]
        self._list = (ctypes.c_void_p * (len(places) + 1))(*places, None)
        second = ctypes.addressof(self._list) if version == 2 else 0
        first = places[0] if version == 1 else 0
        raw = struct.pack("<IIQQ", 0x466243B1, version, first, second)
        self._raw = ctypes.create_string_buffer(raw, len(raw))

    @property
    def address(self) -> int:
        return ctypes.addressof(self._raw)
