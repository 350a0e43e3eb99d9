"""The constants and structs of wire.h and board.h, which the driver's libraries include.

A header's name in; numbers and Python structs of the same layout out. The headers use a subset of
C. A member is an integer, another struct, or an array of these, and needs no padding. A test
compares the sizes with a compiler's.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

DIRECTORY: Final = Path(__file__).resolve().parent / "src" / "client"
_INTEGERS: Final[dict[str, tuple[Any, str]]] = {
    "char": (ctypes.c_uint8, "s"),
    "uint8_t": (ctypes.c_uint8, "s"),
    "int32_t": (ctypes.c_int32, "i"),
    "uint32_t": (ctypes.c_uint32, "I"),
    "uint64_t": (ctypes.c_uint64, "Q"),
}


class Header:
    def __init__(self, name: str) -> None:
        text = (DIRECTORY / name).read_text()
        self._text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        defined = re.findall(r"^#define (\w+)\s+(\w+)", self._text, re.MULTILINE)
        self.constants = {constant: int(value, 0) for constant, value in defined}
        for body in re.findall(r"enum \w+ \{(.*?)\}", self._text, re.DOTALL):
            value = -1
            for constant, given in re.findall(r"(\w+)(?: = (\d+))?\s*(?:,|$)", body):
                value = int(given) if given else value + 1
                self.constants[constant] = value

    def _members(self) -> Iterator[tuple[str, list[tuple[str, str, int]]]]:
        """Yield each struct's name and members: type, name, and length of an array or 0."""
        for name, body in re.findall(r"struct (\w+) \{(.*?)\n\};", self._text, re.DOTALL):
            yield (
                name,
                [
                    (kind, member, int(self.constants.get(count, count or 0)))
                    for kind, members in re.findall(r"(?:struct )?(\w+) ([^;]+);", body)
                    for member, count in re.findall(r"(\w+)(?:\[(\w+)\])?", members)
                ],
            )

    def packed(self) -> dict[str, struct.Struct]:
        """Return a struct.Struct for each C struct. An array of bytes is one value. Any other
        array has one value for each element."""
        return {
            name: struct.Struct("<" + "".join(f"{n or 1}{_INTEGERS[kind][1]}" for kind, _, n in of))
            for name, of in self._members()
        }

    def shared(self) -> dict[str, Any]:
        """Return ctypes classes, for memory that other processes write at the same time."""
        kinds: dict[str, Any] = {name: kind for name, (kind, _) in _INTEGERS.items()}
        for name, members in self._members():
            fields = [(field, kinds[kind] * n if n else kinds[kind]) for kind, field, n in members]
            kinds[name] = type(name, (ctypes.LittleEndianStructure,), {"_fields_": fields})
        return kinds
