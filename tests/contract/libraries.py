"""A shared library without code, whose ELF note states a version of the contract."""

from __future__ import annotations

import os
import struct

from gpuslice.contract import library_file


def library(
    contract: str | None = library_file.CONTRACT,
    machine: str = os.uname().machine,
    content: bytes = b"",
) -> bytes:
    """Return an ELF file: a header, one segment with the ELF note, then `content`. contract: the
    note's text, or None for no note."""
    owner, text = b"gpuslice\0\0\0\0", (contract or "").encode() + b"\0"
    note = struct.pack("<III", 9, len(text), 1) + owner + text.ljust(-(-len(text) // 4) * 4, b"\0")
    note = note if contract is not None else b""
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    number = library_file.MACHINES[machine]
    header = struct.pack("<HHIQQQIHHHHHH", 3, number, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 4, 4, 120, 120, 120, len(note), len(note), 4)
    return ident + header + segment + note + content
