"""The entry point as the container would find it; and images made to hang or mislead the check."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from nri_plugin.host import entrypoint, rooted_open
from nri_plugin.host.entrypoint import Process
from tests.nri_plugin.host.test_elf import GLIBC, HERE, program

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

    def put(self, name: str, content: bytes, mode: int = 0o755) -> Path:
        path = self.path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)
        return path

    def link(self, name: str, target: str) -> None:
        path = self.path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

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
    "a socket": (lambda path: _listen(path), "it is a special file"),
    "a directory": (Path.mkdir, "it is a directory"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "Too many levels"),
    "a dangling link": (lambda path: path.symlink_to("/nowhere"), "No such file"),
    "text": (lambda path: path.write_text("hello"), "neither an ELF program nor a script"),
    "a hole of a terabyte": (lambda path: os.truncate(_made(path), 1 << 40), "neither an ELF"),
    "segments at the end of numbers": (
        lambda path: path.write_bytes(STATIC[:32] + b"\xff" * 8 + STATIC[40:]),
        "statically",
    ),
}


def _listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


def _made(path: Path) -> Path:
    path.touch()
    return path


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
