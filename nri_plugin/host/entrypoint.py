"""Finds the program that a container will start, and whether a limit can be enforced in it.

Resolves the entry point as the runtime and the kernel do: a name is searched on the container's
PATH, a script leads to its interpreter, and links resolve inside the container. Programs that start
later are not examined. Reads only an ELF file's headers or a script's first line. A malformed file
is no program. Blocks: see rooted_open.py, which opens the files.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuslice.contract.library_file import ELF_HEADER, ELF_LITTLE, ELF_SEGMENT, ELF_WIDE
from nri_plugin.host import rooted_open

_SCRIPTS_MAX: Final = 6
"""Limit of nested scripts. Linux follows fewer."""
_PATH_PARTS_MAX: Final = 256
_READ_MAX: Final = 1 << 62

Read = Callable[[int, int], bytes]
"""Read(offset, size) returns `size` bytes of the file, or fewer at the file's end."""

_LINE_BYTES: Final = 256
"""Bytes that the kernel reads of a script's first line."""
_INTERPRETER: Final = 3
_SEGMENTS_MAX: Final = 128
_PATH_BYTES: Final = 4096
_GLIBC: Final = re.compile(r"ld-linux[\w.-]*\.so\.\d+|ld64\.so\.\d+|ld-2\.\d+\.so")
_MUSL: Final = re.compile(r"ld-musl-.*")


@dataclass(frozen=True, slots=True)
class Program:
    """An ELF program. interpreter: its dynamic loader; None if it names none."""

    wide: bool
    machine: int
    interpreter: str | None


@dataclass(frozen=True, slots=True)
class Script:
    """A text file that names its interpreter."""

    interpreter: str


@dataclass(frozen=True, slots=True)
class Process:
    """The process to start, from the bundle's configuration with NRI's adjustments."""

    args: Sequence[str]
    env: Mapping[str, str]
    cwd: str


def out_of_reach(root: int, process: Process, machine: int, forwarded: bool) -> str:
    """Return why no limit can be enforced in the entry point; "" if one can.

    root: descriptor of the process's root directory. machine: an ELF number of MACHINES. forwarded:
    strict mode is on. In a program that cannot be found or read no limit can be enforced.
    """
    if not process.args:
        return "no command is given"
    name = process.args[0]
    try:
        place = _place(root, process, name)
        for _ in range(_SCRIPTS_MAX):
            with rooted_open.lookup(root, place) as descriptor:
                match _parse(descriptor):
                    case Script(interpreter):
                        name, place = interpreter, _from(process.cwd, interpreter)
                    case Program() as program:
                        loader = _loader(root, process, program)
                        own_name = rooted_open.name_of(descriptor)
                        why = program_out_of_reach(program, own_name, loader, machine, forwarded)
                        return f"{name!r} {why}" if why else ""
                    case None:
                        return f"{name!r} is neither an ELF program nor a script"
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return f"{name!r} cannot be inspected: this kernel has no openat2 (Linux 5.6 has)"
        return f"{name!r} cannot be inspected: {error.strerror}"
    return f"{name!r} is read by a script that is read by a script, and so on"


def _loader(root: int, process: Process, program: Program) -> str:
    """Return the file name of the program's dynamic loader, with links resolved; "": none."""
    if program.interpreter is None:
        return ""
    with rooted_open.lookup(root, _from(process.cwd, program.interpreter)) as descriptor:
        return rooted_open.name_of(descriptor)


def _parse(descriptor: int) -> Program | Script | None:
    with rooted_open.readable(descriptor) as file:

        def read(offset: int, size: int) -> bytes:
            return os.pread(file, size, offset) if offset < _READ_MAX else b""

        return parse(read)


def _place(root: int, process: Process, name: str) -> str:
    """Return the program's path. A name without a slash is searched on PATH, as in execvp."""
    if "/" in name:
        return _from(process.cwd, name)
    for directory in process.env.get("PATH", "").split(":")[:_PATH_PARTS_MAX]:
        place = _from(process.cwd, f"{directory or '.'}/{name}")
        try:
            with rooted_open.lookup(root, place) as descriptor:
                mode = os.fstat(descriptor).st_mode
        except OSError as error:
            if error.errno == errno.ENOSYS:
                raise
            continue
        if stat.S_ISREG(mode) and mode & 0o111:
            return place
    raise OSError(errno.ENOENT, "it is not on the container's PATH")


def _from(cwd: str, path: str) -> str:
    return path if path.startswith("/") else f"{cwd}/{path}"


def parse(read: Read) -> Program | Script | None:
    """Return the program or script; None if the kernel cannot execute the file by itself."""
    start = read(0, _LINE_BYTES)
    if start[:2] == b"#!":
        match = re.match(rb"[ \t]*([^ \t\n\0]*)", start[2:])
        return Script(os.fsdecode(match[1])) if match and match[1] else None
    if len(start) < ELF_HEADER.size:
        return None
    magic, width, order, _, _, machine, _, _, segments_at, _, _, _, size, count, *_ = (
        ELF_HEADER.unpack_from(start)
    )
    if magic != b"\x7fELF":
        return None
    if (width, order) != (ELF_WIDE, ELF_LITTLE):
        return Program(False, machine, None)
    if size != ELF_SEGMENT.size or count > _SEGMENTS_MAX:
        return None
    table = read(segments_at, size * count)
    for at in range(0, len(table) - size + 1, size):
        kind, _, offset, _, _, file_bytes, _, _ = ELF_SEGMENT.unpack_from(table, at)
        if kind == _INTERPRETER:
            name = read(offset, min(file_bytes, _PATH_BYTES)).partition(b"\0")[0]
            return Program(True, machine, os.fsdecode(name))
    return Program(True, machine, None)


def program_out_of_reach(
    program: Program, name: str, loader: str, machine: int, forwarded: bool
) -> str:
    """Return why our limit cannot be enforced in the program; "" if it can.

    name: the program's file name. loader: the file name of its dynamic loader, with links resolved.
    machine: our library's ELF number. forwarded: the driver's libraries are forwarders, which every
    dynamically linked program loads.
    """
    if not program.wide or program.machine != machine:
        return "is built for another machine than the library, which is not loaded into it"
    if program.interpreter is None:
        # glibc's loader may be run as a program. It then reads the preload file, too.
        own = _GLIBC.fullmatch(posixpath.basename(name))
        return "" if own else "is statically linked, and loads no library before it starts"
    names = {posixpath.basename(program.interpreter), posixpath.basename(loader)}
    if any(_MUSL.fullmatch(each) for each in names):
        return "" if forwarded else "is a program of musl, whose loader reads no preload file"
    if any(_GLIBC.fullmatch(each) for each in names):
        return ""
    return f"is started by {program.interpreter}, which is not known to read a preload file"
