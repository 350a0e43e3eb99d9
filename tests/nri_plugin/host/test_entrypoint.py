"""The entry point as the container would find it, classified by its bytes: real programs,
constructed ones, and garbage; and images made to hang or mislead the check."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.contract.library_file import MACHINES
from nri_plugin.host import entrypoint, rooted_open
from nri_plugin.host.entrypoint import Process

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


def test_this_machines_programs() -> None:
    for name, dynamic in (("bash", True), ("busybox", False)):
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


# --- in a root


DYNAMIC = program(GLIBC.encode() + b"\0")
STATIC = program()


class Root:
    """A container's root, as a directory of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.put(GLIBC, STATIC)
        self.put("/usr/bin/dynamic", DYNAMIC)
        self.put("/usr/bin/static", STATIC)
        self.fd = os.open(path, os.O_PATH | os.O_DIRECTORY)

    def put(self, name: str, content: bytes, mode: int = 0o755) -> None:
        path = self.path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)

    def link(self, name: str, target: str) -> None:
        (self.path / name.lstrip("/")).symlink_to(target)

    def why(
        self, *args: str, path: str | None = "/usr/bin", cwd: str = "/", forwarded: bool = False
    ) -> str:
        env: Mapping[str, str] = {} if path is None else {"PATH": path}
        return entrypoint.out_of_reach(self.fd, Process(args, env, cwd), HERE, forwarded)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    root = Root(tmp_path / "root")
    yield root
    os.close(root.fd)


def test_a_static_program_is_out_of_reach(root: Root) -> None:
    assert root.why("dynamic") == root.why("./dynamic", cwd="/usr/bin") == ""
    assert "statically" in root.why("../bin/static", cwd="/usr/bin")
    assert root.why("/usr/bin/static", "x") == (
        "'/usr/bin/static' is statically linked, and loads no library before it starts"
    )
    root.put("/alien", program(b"/lib/ld-alien.so.1\0"))
    assert "'/alien' cannot be inspected: No such file" in root.why("/alien")
    assert root.why() == "no command is given"
    assert "cannot be inspected" in root.why("/a\0b")


def test_path_is_searched_as_the_runtime_does(root: Root) -> None:
    root.put("/a/dynamic", STATIC, 0o644)  # not executable: skipped
    (root.path / "b/dynamic").mkdir(parents=True)
    root.put("/c", b"not a directory")
    assert root.why("dynamic", path="/absent:/a:/b:/c:/usr/bin") == ""
    assert "'static' is statically" in root.why("static", path="/absent:/usr/bin")
    assert root.why("static", path="/a:/b") == (
        "'static' cannot be inspected: it is not on the container's PATH"
    )
    assert "PATH" in root.why("static", path=None)
    assert "statically" in root.why("static", path=":/absent", cwd="/usr/bin")


def test_links_lead_where_they_lead_inside(root: Root) -> None:
    root.link("/entry", "/usr/bin/static")
    root.link("/bin", "usr/bin")
    root.link("/up", "../../../../../../usr/bin/static")
    for name in ("/entry", "/bin/static", "/up"):
        assert "statically" in root.why(name)
    # The same path outside is bash, which is dynamic.
    assert Path("/bin/bash").exists()
    root.put("/usr/bin/bash", STATIC)
    root.link("/sh", "/bin/bash")
    assert "statically" in root.why("/sh")


def test_a_script_is_its_interpreter(root: Root) -> None:
    root.put("/entry.sh", b"#!/usr/bin/static -e\n")
    root.put("/entry.py", b"#!/usr/bin/dynamic\n")
    root.put("/usr/bin/of-scripts", b"#!/entry.sh\n")
    root.put("/relative", b"#!bin/dynamic\n")
    assert "'/usr/bin/static' is statically" in root.why("/entry.sh")
    assert root.why("/entry.py") == ""
    assert "statically" in root.why("of-scripts")
    assert root.why("/relative", cwd="/usr") == ""
    root.put("/itself", b"#!/itself\n")
    assert "a script that is read by a script" in root.why("/itself")


UNREADABLE: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "absent": (lambda _: None, "No such file or directory"),
    "a FIFO": (os.mkfifo, "it is a special file"),
    "a socket": (lambda path: os.mknod(path, 0o140755), "it is a special file"),
    "a directory": (Path.mkdir, "it is a directory"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "Too many levels"),
    "a dangling link": (lambda path: path.symlink_to("/nowhere"), "No such file"),
    "text": (lambda path: path.write_text("hello"), "neither an ELF program nor a script"),
    "a hole of a terabyte": (lambda path: _hole(path), "neither an ELF"),
    "segments at the end of numbers": (
        lambda path: path.write_bytes(STATIC[:32] + b"\xff" * 8 + STATIC[40:]),
        "statically",
    ),
}


def _hole(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize("case", UNREADABLE)
def test_an_unreadable_entry_point_is_refused(root: Root, case: str) -> None:
    make, why = UNREADABLE[case]
    make(root.path / "entry")
    assert why in root.why("/entry")


def test_a_link_of_proc_is_not_followed(tmp_path: Path) -> None:
    """It would resolve to a file of the reading process."""
    (tmp_path / "entry").symlink_to("/proc/self/exe")
    everything = os.open("/", os.O_PATH)
    process = Process([str(tmp_path / "entry")], {}, "/")
    why = entrypoint.out_of_reach(everything, process, HERE, False)
    os.close(everything)
    assert "cannot be inspected: Too many levels" in why


@pytest.mark.node
def test_a_device_is_never_opened(root: Root) -> None:
    """Opening a tape may block for ever, opening a watchdog may reboot the machine."""
    os.mknod(root.path / "entry", 0o20755, os.makedev(1, 8))  # /dev/random
    assert "it is a special file" in root.why("/entry")


@pytest.mark.parametrize("name", ["/usr/bin/static", "static"])
def test_without_openat2_an_entry_point_is_refused(
    root: Root, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that no kernel has stands for a kernel that lacks the call."""
    monkeypatch.setattr(rooted_open, "_OPENAT2", 0x7FFFFFFF)
    assert root.why(name) == f"{name!r} cannot be inspected: this kernel has no openat2" + (
        " (Linux 5.6 has)"
    )


def test_a_directory_that_is_moved_under_the_look_leads_nowhere_else(root: Root) -> None:
    """The answer is the program inside, or none, while /usr/bin/.. is moved about."""
    (root.path / "deep/er").mkdir(parents=True)
    child = os.fork()
    if child == 0:
        while True:
            os.rename(root.path / "deep/er", root.path / "er")
            os.rename(root.path / "er", root.path / "deep/er")
    try:
        for _ in range(2000):
            said = root.why("/deep/er/../../usr/bin/static")
            assert "statically" in said or "cannot be inspected" in said
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
