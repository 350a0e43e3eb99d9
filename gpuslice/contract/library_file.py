"""The library as a file: the machine that it is built for, and its contract.

A contract is a text with the versions of the files that the agent and the library share. A library
fits an agent of the same contract. An ELF note of the owner `gpuslice` contains the contract, so
that a reader need not load the library; `readelf -p .note.gpuslice` prints it. HAMi's library has
no such note. Pure: parses bytes that an operator supplies. Malformed data raises LibraryFileError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpuslice.contract import grant_file, lease_file, region_file

CONTRACT: Final = (
    f"grant {grant_file.VERSION}, region {region_file.VERSION}, lease {lease_file.VERSION}"
)
"""The contract that this release's library reports and its agent requires."""
NOTE_OWNER: Final = "gpuslice"
NOTE_TYPE: Final = 1
MACHINES: Final = {"x86_64": 62, "aarch64": 183}
"""Kernel's machine name -> ELF machine number."""

ELF_HEADER: Final = struct.Struct("<4sBBB9xHHIQQQIHHHHHH")
ELF_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
"""Layout of a program header of 64-bit ELF."""
ELF_WIDE: Final = 2
ELF_LITTLE: Final = 1

_NOTE: Final = struct.Struct("<III")
_SHARED_OBJECT: Final = 3
_NOTES: Final = 4
_ALIGNMENT: Final = 4


class LibraryFileError(Exception):
    """The file is not a usable library. The text states what the file must be."""


@dataclass(frozen=True, slots=True)
class Library:
    """A parsed library. machine: its ELF machine number. contract: None without our note."""

    machine: int
    contract: str | None


def parse(data: bytes) -> Library:
    """Parse a file. Raises LibraryFileError if the data is not a shared library of 64 bits."""
    if len(data) < ELF_HEADER.size:
        raise LibraryFileError("must be a shared library (ELF)")
    magic, width, order, _, kind, machine, _, _, segments_at, _, _, _, size, count, *_ = (
        ELF_HEADER.unpack_from(data)
    )
    if (magic, width, order, kind) != (b"\x7fELF", ELF_WIDE, ELF_LITTLE, _SHARED_OBJECT):
        raise LibraryFileError("must be a shared library (ELF of 64 bits, little-endian)")
    if size != ELF_SEGMENT.size or not count or segments_at + size * count > len(data):
        raise LibraryFileError("must be a complete shared library: its program headers are missing")
    contract = None
    for at in range(segments_at, segments_at + size * count, size):
        kind, _, offset, _, _, file_bytes, _, _ = ELF_SEGMENT.unpack_from(data, at)
        if offset + file_bytes > len(data):
            raise LibraryFileError("must be a complete shared library: its end is missing")
        if kind == _NOTES:
            for text in _notes(data[offset : offset + file_bytes]):
                contract = text
    return Library(machine, contract)


def check(data: bytes, machine: str, contract: str | None = CONTRACT) -> None:
    """Raise LibraryFileError unless the data is a library for `machine` (a name of uname) with this
    contract. contract: None accepts every library, also one without a contract."""
    parsed = parse(data)
    if parsed.machine != MACHINES.get(machine):
        built_for = {number: name for name, number in MACHINES.items()}.get(parsed.machine)
        raise LibraryFileError(
            f"must be a library for {machine},"
            f" not for {built_for or f'ELF machine {parsed.machine}'}"
        )
    if contract is not None and parsed.contract != contract:
        raise LibraryFileError(
            f"must be a library of contract {contract!r}, not {parsed.contract!r}"
        )


def _notes(segment: bytes) -> Iterator[str]:
    """Yield the text of each of gpuslice's notes in a segment."""
    at = 0
    while at + _NOTE.size <= len(segment):
        name_bytes, text_bytes, kind = _NOTE.unpack_from(segment, at)
        name_at = at + _NOTE.size
        text_at = name_at + _aligned(name_bytes)
        name = segment[name_at : name_at + name_bytes]
        if (name, kind) == (NOTE_OWNER.encode() + b"\0", NOTE_TYPE):
            text = segment[text_at : text_at + text_bytes]
            yield text.partition(b"\0")[0].decode("ascii", "replace")
        at = text_at + _aligned(text_bytes)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
