"""Classification of a file by its bytes: real programs, constructed ones, and garbage."""

from __future__ import annotations

import shutil
import struct
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.contract.library_file import MACHINES
from nri_plugin.host import entrypoint

HERE = MACHINES["x86_64"]
GLIBC = "/lib64/ld-linux-x86-64.so.2"
MUSL = "/lib/ld-musl-x86_64.so.1"
LOAD, INTERPRETER = 1, 3


def program(
    interpreter: bytes | None = None,
    *,
    width: int = 2,
    order: int = 1,
    machine: int = HERE,
    loads: int = 1,
    entry_bytes: int = 56,
) -> bytes:
    """An ELF with complete headers and without code."""
    kinds = [LOAD] * loads + [INTERPRETER] * (interpreter is not None)
    text = interpreter or b""
    at = 64 + 56 * len(kinds)
    ident = struct.pack("<4sBBB9x", b"\x7fELF", width, order, 1)
    head = struct.pack(
        "<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, entry_bytes, len(kinds), 0, 0, 0
    )
    segments = [
        struct.pack("<IIQQQQQQ", kind, 4, at, 0, 0, len(text), len(text), 1) for kind in kinds
    ]
    return ident + head + b"".join(segments) + text + bytes(200)


def reader(data: bytes) -> entrypoint.Read:
    return lambda offset, size: data[offset : offset + size]


FILES: dict[str, tuple[bytes, entrypoint.Program | entrypoint.Script | None]] = {
    "dynamic": (program(GLIBC.encode() + b"\0"), entrypoint.Program(True, HERE, GLIBC)),
    "behind many segments": (program(b"/x\0", loads=60), entrypoint.Program(True, HERE, "/x")),
    "static": (program(), entrypoint.Program(True, HERE, None)),
    "of 32 bits": (program(width=1, machine=3), entrypoint.Program(False, 3, None)),
    "of the other byte order": (program(order=2), entrypoint.Program(False, HERE, None)),
    "of another machine": (program(machine=183), entrypoint.Program(True, 183, None)),
    "strange segments": (program(entry_bytes=57), None),
    "too many segments": (program(loads=129), None),
    "cut off": (program()[:63], None),
    "another magic": (b"\x7fELG" + program()[4:], None),
    "a script": (b"#!/bin/sh\necho", entrypoint.Script("/bin/sh")),
    "a script with blanks and an argument": (
        b"#! \t/bin/env python3\n",
        entrypoint.Script("/bin/env"),
    ),
    "a script without an interpreter": (b"#! \n/bin/sh", None),
    "a script without an end": (b"#!/bin/sh", entrypoint.Script("/bin/sh")),
    "a script written on Windows": (b"#!/bin/sh\r\n", entrypoint.Script("/bin/sh\r")),
    "empty": (b"", None),
    "text": (b"hello world", None),
}


@pytest.mark.parametrize(("data", "found"), FILES.values(), ids=FILES)
def test_parse(data: bytes, found: entrypoint.Program | entrypoint.Script | None) -> None:
    assert entrypoint.parse(reader(data)) == found


@pytest.mark.parametrize(
    ("name", "dynamic"), [("bash", True), ("busybox", False)], ids=["bash", "busybox"]
)
def test_this_machines_programs(name: str, dynamic: bool) -> None:
    found = entrypoint.parse(reader(Path(shutil.which(name) or "").read_bytes()))
    assert isinstance(found, entrypoint.Program) and found.wide
    assert (found.interpreter is not None) == dynamic


WIDE = partial(entrypoint.Program, True, HERE)
LOADER = "ld-linux-x86-64.so.2"
ALIEN = entrypoint.Program(True, 183, GLIBC)
JUDGED: dict[str, tuple[entrypoint.Program, str, str, bool, str]] = {
    "glibc": (WIDE(GLIBC), "sh", LOADER, False, ""),
    "an old glibc": (WIDE("/lib64/l.so.3"), "sh", "ld-2.17.so", False, ""),
    "glibc's loader itself": (WIDE(None), LOADER, "", False, ""),
    "static": (WIDE(None), "tini", "", False, "statically linked"),
    "static, forwarded": (WIDE(None), "tini", "", True, "statically linked"),
    "musl": (WIDE(MUSL), "sh", "libc.so", False, "a program of musl"),
    "musl, forwarded": (WIDE(MUSL), "sh", "libc.so", True, ""),
    "musl behind glibc's name": (WIDE(GLIBC), "sh", "ld-musl-x86_64.so.1", False, "musl"),
    "of 32 bits": (entrypoint.Program(False, 3, None), "sh", "l.so.2", True, "another machine"),
    "of another machine": (ALIEN, "sh", LOADER, True, "another machine"),
    "another loader": (WIDE("/system/bin/linker64"), "sh", "linker64", False, "linker64"),
}


@pytest.mark.parametrize(
    ("found", "name", "loader", "forwarded", "why"), JUDGED.values(), ids=JUDGED
)
def test_reach(
    found: entrypoint.Program, name: str, loader: str, forwarded: bool, why: str
) -> None:
    said = entrypoint.program_out_of_reach(found, name, loader, HERE, forwarded)
    assert why in said and bool(why) == bool(said)


class Counting:
    """A file that counts the bytes that are read."""

    def __init__(self, data: bytes) -> None:
        self.data, self.asked = data, 0

    def __call__(self, offset: int, size: int) -> bytes:
        assert offset >= 0 and size >= 0
        self.asked += size
        return self.data[offset : offset + size]


@given(st.one_of(st.binary(), st.binary().map(lambda tail: program()[:40] + tail)))
def test_garbage_is_read_within_bounds_and_raises_nothing(data: bytes) -> None:
    read = Counting(data)
    entrypoint.parse(read)
    assert read.asked <= 256 + 128 * 56 + 4096


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=500))
def test_an_interpreters_name_is_read_as_it_was_written(name: str) -> None:
    found = entrypoint.parse(reader(program(name.encode() + b"\0more")))
    assert isinstance(found, entrypoint.Program) and found.interpreter == name
