"""`python -m nri_plugin distribute` as a process: flags, signals, what it notices by itself."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuslice.contract import names
from gpuslice.contract.library_file import MACHINES
from gpuslice.gpu.host_view import HostView
from nri_plugin.distributor import Copy
from tests.contract.libraries import library
from tests.support import ROOT, until

OLD, NEW, HAMI = library(content=b"old"), library(content=b"new"), library(None)


class Node:
    """A node's root directory, and the payload of one release."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "host"
        self.root.mkdir()
        self.copy = self.root / names.HOST_LIBRARY.lstrip("/")
        self.payloads = tmp_path / "payloads"
        self.payloads.mkdir()

    def command(self, data: bytes, *options: str) -> list[str]:
        library = self.payloads / f"{len(list(self.payloads.iterdir()))}.so"
        library.write_bytes(data)
        command = [sys.executable, "-m", "nri_plugin", "distribute", "--library", str(library)]
        return [*command, "--host-root", str(self.root), *options]

    @contextmanager
    def distributor(self, data: bytes, *options: str) -> Iterator[Path]:
        """Yields its log, once it has written the copy; ends it by SIGTERM."""
        log = self.payloads / f"{len(list(self.payloads.iterdir()))}.log"
        with log.open("w") as errors:
            process = subprocess.Popen(self.command(data, *options), cwd=ROOT, stderr=errors)
        try:
            until(lambda: "copy of the library written" in log.read_text(), "it wrote the copy")
            yield log
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0, log.read_text()
        assert log.read_text().endswith("msg=stopped\n")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_copy_is_kept_and_replaced_by_a_rename(node: Node) -> None:
    with node.distributor(NEW):
        assert node.copy.read_bytes() == NEW
        assert node.copy.stat().st_mode & 0o777 == 0o755
        # Koordinator's and HAMi's distributors, `cp -f` over the copy, write in place.
        foreign = node.payloads / "foreign"
        foreign.write_bytes(HAMI)
        with node.copy.open("rb") as mapped:
            subprocess.run(["cp", "-f", foreign, node.copy], check=True)
            until(lambda: node.copy.read_bytes() == NEW, "the copy is restored")
            assert mapped.read() == HAMI, "programs keep the file that they map"
        subprocess.run(["rm", "-r", node.copy.parent], check=True)
        until(node.copy.exists, "the directory is restored")
    with node.distributor(HAMI, "--source", "hami"):
        assert node.copy.read_bytes() == HAMI
    assert [each.name for each in node.copy.parent.iterdir()] == [names.FILE_LIBRARY]


def test_links_are_the_hosts(node: Node) -> None:
    """RHEL CoreOS has /usr/local in /var, by an absolute link."""
    (node.root / "usr").mkdir()
    (node.root / "var/usrlocal").mkdir(parents=True)
    (node.root / "usr/local").symlink_to("/var/usrlocal")
    with node.distributor(NEW):
        assert (node.root / "var/usrlocal/vgpu/libvgpu.so").read_bytes() == NEW


def test_a_host_that_does_not_allow_it_is_one_line(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    (node.root / "usr").write_text("in the way")
    copy = Copy(NEW, Path(names.HOST_LIBRARY), HostView(node.root))
    assert copy.restore() == copy.restore() > 10
    (line,) = [each.getMessage() for each in caplog.records]
    assert "Not a directory" in line and "gpuslice's own pods need none" in line
    (node.root / "usr").unlink()
    assert copy.restore() < 10
    assert node.copy.read_bytes() == NEW


ELSEWHERE = next(name for name, number in MACHINES.items() if number != OLD[18])
REFUSED = {
    "no ELF file": (b"#!/bin/sh\n", "must be a shared library (ELF)"),
    "half": (OLD[:100], "must be a complete shared library"),
    "another machine": (library(machine=ELSEWHERE), f"not for {ELSEWHERE}"),
    "HAMi's": (HAMI, "must be gpuslice's library; for HAMi's set --source hami"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_library_for_this_node_is_refused(case: str, node: Node) -> None:
    data, why = REFUSED[case]
    done = subprocess.run(node.command(data), cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert re.search(r"error: --library: invalid value '.*': must be ", done.stderr)
    assert why in done.stderr
    assert not node.copy.exists()


def test_a_file_that_is_missing_is_refused(node: Node) -> None:
    command = [*node.command(OLD), "--library", "/absent/libvgpu.so"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "invalid value '/absent/libvgpu.so': must be a readable file: No such" in done.stderr
