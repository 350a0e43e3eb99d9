"""The entry point as the container would find it, classified by the file's bytes."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.contract.library_file import MACHINES
from nri_plugin.host import entrypoint, rooted_open
from nri_plugin.host.entrypoint import Process, Program, Script

HERE = MACHINES["x86_64"]
GLIBC = "/lib64/ld-linux-x86-64.so.2"
MUSL = "/lib/ld-musl-x86_64.so.1"
LOAD, INTERPRETER = 1, 3


def program(
    interpreter: bytes | None = None, loads: int = 1, width: int = 2, order: int = 1, **of: int
) -> bytes:
    """Return an ELF file with complete headers and without code. of: machine, entry_bytes."""
    kinds = [LOAD] * loads + [INTERPRETER] * (interpreter is not None)
    text, at = interpreter or b"", 64 + 56 * len(kinds)
    machine, entry_bytes = of.get("machine", HERE), of.get("entry_bytes", 56)
    ident = struct.pack("<4sBBB9x", b"\x7fELF", width, order, 1)
    sizes = (64, entry_bytes, len(kinds), 0, 0, 0)
    head = struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, *sizes)
    places = (4, at, 0, 0, len(text), len(text), 1)
    segments = (struct.pack("<IIQQQQQQ", kind, *places) for kind in kinds)
    return ident + head + b"".join(segments) + text + bytes(200)


class Counting:
    """A reader of a file that counts the bytes which are read."""

    def __init__(self, data: bytes) -> None:
        self.data, self.asked = data, 0

    def __call__(self, offset: int, size: int) -> bytes:
        assert offset >= 0 and size >= 0
        self.asked += size
        return self.data[offset : offset + size]


DYNAMIC, STATIC = program(GLIBC.encode() + b"\0"), program()
FILES: dict[str, tuple[bytes, Program | Script | None]] = {
    "dynamic": (DYNAMIC, Program(True, HERE, GLIBC)),
    "behind many segments": (program(b"/x\0", loads=127), Program(True, HERE, "/x")),
    "static": (STATIC, Program(True, HERE, None)),
    "of 32 bits": (program(width=1, machine=3), Program(False, 3, None)),
    "of the other byte order": (program(order=2), Program(False, HERE, None)),
    "of another machine": (program(machine=183), Program(True, 183, None)),
    "a header alone": (STATIC[:64], Program(True, HERE, None)),
    "a table that is cut off": (STATIC[:119], Program(True, HERE, None)),
    "strange segments": (program(entry_bytes=57), None),
    "too many segments": (program(loads=129), None),
    "cut off": (STATIC[:63], None),
    "another magic": (b"\x7fELG" + STATIC[4:], None),
    "a script": (b"#!/bin/sh\necho", Script("/bin/sh")),
    "a script with blanks and an argument": (b"#! \t/bin/env python3\n", Script("/bin/env")),
    "a script without an interpreter": (b"#! \n/bin/sh", None),
    "a script without an end": (b"#!/bin/sh", Script("/bin/sh")),
    "a script written on Windows": (b"#!/bin/sh\r\n", Script("/bin/sh\r")),
    "a script whose first line the kernel cuts off": (b"#!/" * 99, Script(("#!/" * 99)[2:256])),
    "empty": (b"", None),
    "text": (b"hello world", None),
}


@pytest.mark.parametrize(("data", "found"), FILES.values(), ids=FILES)
def test_parse(data: bytes, found: Program | Script | None) -> None:
    assert entrypoint.parse(Counting(data)) == found


def test_this_machines_programs() -> None:
    for name, dynamic in (("bash", True), ("busybox", False)):
        found = entrypoint.parse(Counting(Path(shutil.which(name) or "").read_bytes()))
        assert isinstance(found, Program) and found.wide
        assert (found.interpreter is not None) == dynamic


@given(st.one_of(st.binary(), st.binary().map(lambda tail: STATIC[:40] + tail)))
def test_garbage_is_read_within_bounds_and_raises_nothing(data: bytes) -> None:
    read = Counting(data)
    entrypoint.parse(read)
    assert read.asked <= 256 + 128 * 56 + 4096


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=500))
def test_an_interpreters_name_is_read_as_it_was_written(name: str) -> None:
    found = entrypoint.parse(Counting(program(name.encode() + b"\0more")))
    assert isinstance(found, Program) and found.interpreter == name


WIDE = partial(Program, True, HERE)
LOADER = "ld-linux-x86-64.so.2"
JUDGED: dict[str, tuple[Program, str, str, bool, str]] = {
    "glibc": (WIDE(GLIBC), "sh", LOADER, False, ""),
    "an old glibc": (WIDE("/lib64/l.so.3"), "sh", "ld-2.17.so", False, ""),
    "glibc's loader itself": (WIDE(None), LOADER, "", False, ""),
    "static": (WIDE(None), "tini", "", False, "statically linked"),
    "static, forwarded": (WIDE(None), "tini", "", True, "statically linked"),
    "musl": (WIDE(MUSL), "sh", "libc.so", False, "a program of musl"),
    "musl, forwarded": (WIDE(MUSL), "sh", "libc.so", True, ""),
    "musl behind glibc's name": (WIDE(GLIBC), "sh", "ld-musl-x86_64.so.1", False, "musl"),
    "of 32 bits": (Program(False, 3, None), "sh", "l.so.2", True, "another machine"),
    "of another machine": (Program(True, 183, GLIBC), "sh", LOADER, True, "another machine"),
    "another loader": (WIDE("/system/bin/linker64"), "sh", "linker64", False, "linker64"),
}


@pytest.mark.parametrize(
    ("found", "name", "loader", "forwarded", "why"), JUDGED.values(), ids=JUDGED
)
def test_reach(found: Program, name: str, loader: str, forwarded: bool, why: str) -> None:
    said = entrypoint.program_out_of_reach(found, name, loader, HERE, forwarded)
    assert why in said and bool(why) == bool(said)


PROGRAMS: Mapping[str, bytes] = {
    **{GLIBC: STATIC, "/usr/bin/dynamic": DYNAMIC, "/usr/bin/static": STATIC},
    **{"/usr/bin/bash": STATIC, "/alien": program(b"/lib/ld-alien.so.1\0")},
    "/entry.sh": b"#!/usr/bin/static -e\n",
    "/entry.py": b"#!/usr/bin/dynamic\n",
    "/usr/bin/of-scripts": b"#!/entry.sh\n",
    "/relative": b"#!bin/dynamic\n",
    "/itself": b"#!/itself\n",
    "/text": b"hello",
    "/far": STATIC[:32] + b"\xff" * 8 + STATIC[40:],  # its segments begin at 2**64 - 1
}
LINKS = {
    **{"/entry": "/usr/bin/static", "/bin": "usr/bin", "/up": "../../../../../../usr/bin/static"},
    "/sh": "/bin/bash",  # this machine's /bin/bash is dynamic
    "/loop": "loop",
}


class Root:
    def __init__(self, path: Path) -> None:
        self.path = path
        for name, content in (*PROGRAMS.items(), ("/a/dynamic", STATIC)):
            place = path / name[1:]
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
            place.chmod(0o755)
        for name, target in LINKS.items():
            (path / name[1:]).symlink_to(target)
        (path / "a/dynamic").chmod(0o666)
        (path / "b/dynamic").mkdir(parents=True)
        os.mkfifo(path / "fifo")
        (path / "hole").touch()
        os.truncate(path / "hole", 1 << 40)
        self.fd = os.open(path, os.O_PATH | os.O_DIRECTORY)

    def why(self, command: str, path: str | None = "/usr/bin", cwd: str = "/") -> str:
        env = {} if path is None else {"PATH": path}
        return entrypoint.out_of_reach(self.fd, Process(command.split(), env, cwd), HERE, False)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    root = Root(tmp_path / "root")
    yield root
    os.close(root.fd)


STATICALLY = "is statically linked, and loads no library before it starts"
LACKS_PATH = "'static' cannot be inspected: it is not on the container's PATH"


@pytest.mark.parametrize(
    ("command", "path", "cwd", "why"),
    [
        ("dynamic", "/usr/bin", "/", ""),
        ("./dynamic", None, "/usr/bin", ""),
        ("../bin/static", None, "/usr/bin", "statically"),
        ("/usr/bin/static x", None, "/", f"'/usr/bin/static' {STATICALLY}"),
        ("/alien", None, "/", "'/alien' cannot be inspected: No such file"),
        ("", None, "/", "no command is given"),
        ("/a\0b", None, "/", "cannot be inspected"),
        # PATH is searched as the runtime does it: a file that is not executable is skipped.
        ("dynamic", "/absent:/a:/b:/text:/usr/bin", "/", ""),
        ("static", "/absent:/usr/bin", "/", "'static' is statically"),
        ("static", "/a:/b", "/", LACKS_PATH),
        ("static", None, "/", LACKS_PATH),
        ("static", ":/absent", "/usr/bin", "statically"),
        # A link resolves as it does in the container.
        *((name, None, "/", "statically") for name in ("/entry", "/bin/static", "/up", "/sh")),
        # A script counts as its interpreter.
        ("/entry.sh", None, "/", "'/usr/bin/static' is statically"),
        ("/entry.py", None, "/", ""),
        ("of-scripts", "/usr/bin", "/", "statically"),
        ("/relative", None, "/usr", ""),
        ("/itself", None, "/", "a script that is read by a script"),
        # A file that cannot be read is refused.
        ("/absent", None, "/", "No such file or directory"),
        ("/fifo", None, "/", "it is a special file"),
        ("/usr", None, "/", "it is a directory"),
        ("/loop", None, "/", "Too many levels"),
        ("/text", None, "/", "neither an ELF program nor a script"),
        ("/hole", None, "/", "neither an ELF"),
        ("/far", None, "/", "statically"),
    ],
)
def test_out_of_reach(root: Root, command: str, path: str | None, cwd: str, why: str) -> None:
    assert Path("/bin/bash").exists()
    said = root.why(command, path, cwd)
    assert why in said and bool(why) == bool(said)


@pytest.mark.node
def test_a_device_is_never_opened(root: Root) -> None:
    """Opening a tape may block for ever. Opening a watchdog may reboot the machine."""
    os.mknod(root.path / "device", 0o20755, os.makedev(1, 8))  # /dev/random
    assert "it is a special file" in root.why("/device")


def test_a_link_of_proc_is_not_followed(tmp_path: Path) -> None:
    """The link would resolve to a file of the reading process."""
    (tmp_path / "entry").symlink_to("/proc/self/exe")
    everything = os.open("/", os.O_PATH)
    process = Process([str(tmp_path / "entry")], {}, "/")
    why = entrypoint.out_of_reach(everything, process, HERE, False)
    os.close(everything)
    assert "cannot be inspected: Too many levels" in why


@pytest.mark.parametrize("name", ["/usr/bin/static", "static"])
def test_a_kernel_without_openat2(root: Root, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system call number that no kernel has stands for a kernel without openat2."""
    monkeypatch.setattr(rooted_open, "_OPENAT2", 0x7FFFFFFF)
    why = "cannot be inspected: this kernel has no openat2 (Linux 5.6 has)"
    assert root.why(name) == f"{name!r} {why}"


def test_a_directory_that_is_moved_under_the_look_leads_nowhere_else(root: Root) -> None:
    """The search finds the container's program or fails, while a directory on the path moves."""
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
