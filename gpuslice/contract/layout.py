"""Fixed binary layouts as tables. Python packs with them; the C headers are generated from them.

Invariants: fields are little-endian with a fixed width, padding is always declared, and a reader
can check the sizes. A struct never changes within a version: a changed struct is a new version.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

_FORMATS: Final = {"uint64_t": "Q", "int64_t": "q", "uint32_t": "I", "char": "s"}


@dataclass(frozen=True, slots=True)
class Field:
    """The C field `ctype name[count];`, or a scalar if `count` is None. about: its comment in C."""

    ctype: str
    name: str
    about: str = ""
    count: int | None = None

    @property
    def format(self) -> str:
        letter = _FORMATS[self.ctype]
        return letter if self.count is None else f"{self.count}{letter}"

    @property
    def size(self) -> int:
        return struct.calcsize("<" + self.format)

    @property
    def reserved(self) -> bool:
        return self.name.startswith("reserved")


@dataclass(frozen=True, slots=True)
class Write:
    """One step of an update: write `data` at `offset`. Steps must run in order."""

    offset: int
    data: bytes


@dataclass(frozen=True)
class Struct:
    """A C struct without implicit padding; `pack` writes reserved fields as zeros."""

    name: str
    about: str
    fields: Sequence[Field]

    @cached_property
    def _struct(self) -> struct.Struct:
        """Return the format for Python's struct, with reserved fields as padding."""
        formats = (f"{f.size}x" if f.reserved else f.format for f in self.fields)
        return struct.Struct("<" + "".join(formats))

    @cached_property
    def _names(self) -> Sequence[str]:
        return tuple(field.name for field in self.fields if not field.reserved)

    @cached_property
    def size(self) -> int:
        return self._struct.size

    def offset(self, name: str) -> int:
        """Return the bytes from the start of the struct to the field."""
        position = 0
        for field in self.fields:
            if field.name == name:
                return position
            position += field.size
        raise KeyError(name)

    def pack(self, values: Mapping[str, int | bytes]) -> bytes:
        """Pack `values`, which must hold exactly the fields that are not reserved."""
        if values.keys() != set(self._names):
            differ = sorted(values.keys() ^ set(self._names))
            raise ValueError(f"{self.name}: fields differ: {differ}")
        return self.pack_in_order(*(values[name] for name in self._names))

    def pack_in_order(self, *values: int | bytes) -> bytes:
        """Pack values that are given in the order of the fields, without the reserved fields."""
        return self._struct.pack(*values)

    def unpack(self, data: bytes, position: int = 0) -> dict[str, int | bytes]:
        """Return the values by field name, without the reserved fields. Raises struct.error if
        `data` is too short."""
        return dict(zip(self._names, self.unpack_in_order(data, position), strict=True))

    def unpack_in_order(self, data: bytes, position: int = 0) -> tuple[Any, ...]:
        """Return the values in the order of the fields. Otherwise like `unpack`."""
        return self._struct.unpack_from(data, position)


def c_string(value: int | bytes) -> str:
    """Decode a NUL-padded char field. Bytes that are not ASCII become replacement characters."""
    assert isinstance(value, bytes)
    return value.split(b"\0", 1)[0].decode("ascii", "replace")


def whole(value: int | bytes) -> int:
    """Return the value, which must be an integer."""
    assert isinstance(value, int)
    return value
