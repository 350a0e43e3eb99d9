"""The program that a container will start with, found as the runtime and the kernel will find it.

A name is looked for on the container's own PATH, a script leads to its interpreter, links lead
to where they lead inside; all of it through the root of the container's process, with its volumes
and mounts. Says why no limit reaches the program, or that one does. Programs that are started
later, by it or by `kubectl exec`, are not seen.

Blocks: see inside.py, which opens what is opened here.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from nri_plugin import elf, inside

_SCRIPTS_MAX: Final = 6
"""Linux follows fewer scripts that are read by scripts."""
_PATH_PARTS_MAX: Final = 256
_READ_MOST: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Process:
    """What the runtime will start: from the bundle's configuration, NRI's adjustments included."""

    args: Sequence[str]
    env: Mapping[str, str]
    cwd: str


def out_of_reach(root: int, process: Process, machine: int, forwarded: bool) -> str:
    """Why no limit reaches the entry point, for people; empty where one does.

    root: descriptor of the process's own root. machine: as elf.MACHINES. forwarded: strict mode.
    What cannot be found or read is out of reach: nothing is known of it.
    """
    if not process.args:
        return "nothing says what is started"
    name = process.args[0]
    try:
        place = _place(root, process, name)
        for _ in range(_SCRIPTS_MAX):
            with inside.found(root, place) as descriptor:
                match _parse(descriptor):
                    case elf.Script(interpreter):
                        name, place = interpreter, _from(process.cwd, interpreter)
                    case elf.Program() as program:
                        loader = _loader(root, process, program)
                        own_name = inside.name_of(descriptor)
                        why = elf.out_of_reach(program, own_name, loader, machine, forwarded)
                        return f"{name!r} {why}" if why else ""
                    case None:
                        return f"{name!r} is neither an ELF program nor a script"
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return f"{name!r} cannot be looked at: this kernel has no openat2 (Linux 5.6 has)"
        return f"{name!r} cannot be looked at: {error.strerror}"
    return f"{name!r} is read by a script that is read by a script, and so on"


def _loader(root: int, process: Process, program: elf.Program) -> str:
    """The name of the program's dynamic loader, behind all links."""
    if program.interpreter is None:
        return ""
    with inside.found(root, _from(process.cwd, program.interpreter)) as descriptor:
        return inside.name_of(descriptor)


def _parse(descriptor: int) -> elf.Program | elf.Script | None:
    with inside.readable(descriptor) as file:

        def read(offset: int, size: int) -> bytes:
            return os.pread(file, size, offset) if offset < _READ_MOST else b""

        return elf.parse(read)


def _place(root: int, process: Process, name: str) -> str:
    """Where the program lies; a name without a slash is looked for on PATH, as execvp does."""
    if "/" in name:
        return _from(process.cwd, name)
    for directory in process.env.get("PATH", "").split(":")[:_PATH_PARTS_MAX]:
        place = _from(process.cwd, f"{directory or '.'}/{name}")
        try:
            with inside.found(root, place) as descriptor:
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
