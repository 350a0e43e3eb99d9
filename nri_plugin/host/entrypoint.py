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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
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


@dataclass(frozen=True, slots=True)
class File:
    """A file of the container, found by its path with all links resolved. reading: yields a
    function that reads it; OSError if it is no regular file."""

    name: str
    mode: int
    reading: Callable[[], AbstractContextManager[Read]]


Lookup = Callable[[str], AbstractContextManager[File]]
"""Finds a file of the container by its path. Raises OSError."""


class UninspectableError(Exception):
    """The entry point cannot be found or read. The text names it. number: of OSError, or None."""

    def __init__(self, text: str, number: int | None) -> None:
        super().__init__(text)
        self.number = number


def out_of_reach(root: int, process: Process, machine: int, forwarded: bool) -> str:
    """Return why no limit can be enforced in the entry point; "" if one can.

    root: descriptor of the process's root directory. In a program that cannot be found or read no
    limit can be enforced.
    """
    try:
        return why_out_of_reach(partial(_rooted, root), process, machine, forwarded)
    except UninspectableError as error:
        return str(error)


def why_out_of_reach(lookup: Lookup, process: Process, machine: int, forwarded: bool) -> str:
    """Return why no limit can be enforced in the entry point; "" if one can. machine: an ELF number
    of MACHINES. forwarded: strict mode is on. Raises UninspectableError."""
    if not process.args:
        return "no command is given"
    name = process.args[0]
    try:
        place = _place(lookup, process, name)
        for _ in range(_SCRIPTS_MAX):
            # Docker locks a container while a file of it is open.
            with lookup(place) as file, file.reading() as read:
                found = parse(read)
            match found:
                case Script(interpreter):
                    name, place = interpreter, _from(process.cwd, interpreter)
                case Program() as program:
                    loader = _loader(lookup, process, program)
                    why = program_out_of_reach(program, file.name, loader, machine, forwarded)
                    return f"{name!r} {why}" if why else ""
                case None:
                    return f"{name!r} is neither an ELF program nor a script"
    except OSError as error:
        problem = error.strerror
        if error.errno == errno.ENOSYS:
            problem = "this kernel has no openat2 (Linux 5.6 has)"
        raise UninspectableError(f"{name!r} cannot be inspected: {problem}", error.errno) from error
    return f"{name!r} is read by a script that is read by a script, and so on"


def _loader(lookup: Lookup, process: Process, program: Program) -> str:
    """Return the file name of the program's dynamic loader, with links resolved; "": none."""
    if program.interpreter is None:
        return ""
    with lookup(_from(process.cwd, program.interpreter)) as file:
        return file.name


@contextmanager
def _rooted(root: int, path: str) -> Iterator[File]:
    with rooted_open.lookup(root, path) as descriptor:

        @contextmanager
        def reading() -> Iterator[Read]:
            with rooted_open.readable(descriptor) as file:
                yield (
                    lambda offset, size: os.pread(file, size, offset) if offset < _READ_MAX else b""
                )

        yield File(rooted_open.name_of(descriptor), os.fstat(descriptor).st_mode, reading)


def _place(lookup: Lookup, process: Process, name: str) -> str:
    """Return the program's path. A name without a slash is searched on PATH, as in execvp."""
    if "/" in name:
        return _from(process.cwd, name)
    for directory in process.env.get("PATH", "").split(":")[:_PATH_PARTS_MAX]:
        place = _from(process.cwd, f"{directory or '.'}/{name}")
        try:
            with lookup(place) as file:
                mode = file.mode
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
