"""What kind of program a file is, and whether a preload reaches it.

Pure: the bytes come from a function. Reads an ELF's headers and the line of a script, as much of
them as Linux looks at, within fixed bounds; garbage is never an error, only no program.
"""

from __future__ import annotations

import posixpath
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

Read = Callable[[int, int], bytes]
"""Read(offset, size): at most `size` bytes of the file, fewer at its end."""

MACHINES: Final = {"x86_64": 62, "aarch64": 183}
"""ELF's number of a machine, by the kernel's name of it."""

_LINE_BYTES: Final = 256
"""The kernel looks at no more of a script."""
_HEADER: Final = struct.Struct("<4sBBB9xHHIQQQIHHHHHH")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_WIDE: Final = 2
_LITTLE: Final = 1
_INTERPRETER: Final = 3
_SEGMENTS_MAX: Final = 128
_PATH_BYTES: Final = 4096
_GLIBC: Final = re.compile(r"ld-linux[\w.-]*\.so\.\d+|ld64\.so\.\d+|ld-2\.\d+\.so")
_MUSL: Final = re.compile(r"ld-musl-.*")


@dataclass(frozen=True, slots=True)
class Program:
    """An ELF program; interpreter: its dynamic loader, None where it names none."""

    wide: bool
    machine: int
    interpreter: str | None


@dataclass(frozen=True, slots=True)
class Script:
    """A text that names the program that reads it."""

    interpreter: str


def parse(read: Read) -> Program | Script | None:
    """What the kernel would take the file for; None: nothing that it starts by itself."""
    start = read(0, _LINE_BYTES)
    if start[:2] == b"#!":
        named = re.match(rb"[ \t]*([^ \t\n\0]*)", start[2:])
        return Script(_text(named[1])) if named and named[1] else None
    if len(start) < _HEADER.size:
        return None
    magic, width, order, _, _, machine, _, _, segments_at, _, _, _, size, count, *_ = (
        _HEADER.unpack_from(start)
    )
    if magic != b"\x7fELF":
        return None
    if (width, order) != (_WIDE, _LITTLE):
        return Program(False, machine, None)
    if size != _SEGMENT.size or count > _SEGMENTS_MAX:
        return None
    table = read(segments_at, size * count)
    for at in range(0, len(table) - size + 1, size):
        kind, _, offset, _, _, file_bytes, _, _ = _SEGMENT.unpack_from(table, at)
        if kind == _INTERPRETER:
            name = read(offset, min(file_bytes, _PATH_BYTES)).partition(b"\0")[0]
            return Program(True, machine, _text(name))
    return Program(True, machine, None)


def out_of_reach(program: Program, name: str, loader: str, machine: int, forwarded: bool) -> str:
    """Why no limit of ours reaches the program; empty where one does.

    name: the program's file; loader: its dynamic loader's file behind all links; machine: that of
    our library; forwarded: the driver's libraries are forwarders, which any dynamic program meets.
    """
    if not program.wide or program.machine != machine:
        return "is built for another machine than the library, which is not loaded into it"
    if program.interpreter is None:
        # glibc's loader, run as a program, does what it does for others.
        own = _GLIBC.fullmatch(posixpath.basename(name))
        return "" if own else "is statically linked, and loads no library before it starts"
    names = {posixpath.basename(program.interpreter), posixpath.basename(loader)}
    if any(_MUSL.fullmatch(each) for each in names):
        return "" if forwarded else "is a program of musl, whose loader reads no preload file"
    if any(_GLIBC.fullmatch(each) for each in names):
        return ""
    return f"is started by {program.interpreter}, which is not known to read a preload file"


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
