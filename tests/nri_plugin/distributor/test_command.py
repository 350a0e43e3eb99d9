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

from contract import names
from contract.library_file import MACHINES
from tests.contract.libraries import library
from tests.support import ROOT, until

OLD, NEW, HAMI = library(content=b"old"), library(content=b"new"), library(None)


class Node:
    """Directories of a node, and the payload of one release."""

    def __init__(self, tmp_path: Path) -> None:
        self.store = tmp_path / "vgpu/store"
        self.copy = tmp_path / "vgpu/libvgpu.so"
        self.current = self.store / names.FILE_CURRENT
        self.payloads = tmp_path / "payloads"
        self.payloads.mkdir()

    def command(self, data: bytes, *options: str) -> list[str]:
        library = self.payloads / f"{len(list(self.payloads.iterdir()))}.so"
        library.write_bytes(data)
        command = [sys.executable, "-m", "nri_plugin", "distribute", "--library", str(library)]
        return [*command, "--store-dir", str(self.store), *options]

    def run(self, data: bytes, *options: str) -> subprocess.CompletedProcess[str]:
        command = self.command(data, *options)
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
        )

    @contextmanager
    def distributor(self, data: bytes, *options: str) -> Iterator[Path]:
        """Yields its log, once it has published; ends it by SIGTERM."""
        log = self.payloads / f"{len(list(self.payloads.iterdir()))}.log"
        with log.open("w") as errors:
            process = subprocess.Popen(self.command(data, *options), cwd=ROOT, stderr=errors)
        try:
            until(
                lambda: 'msg="library published"' in log.read_text(),
                f"it published: {log.read_text()}",
            )
            yield log
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0, log.read_text()
        assert log.read_text().endswith("msg=stopped\n")

    def release(self) -> bytes:
        return (self.store / self.current.read_text().strip() / names.FILE_LIBRARY).read_bytes()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_distributor_publishes_and_restores_changed_files_at_once(node: Node) -> None:
    with node.distributor(NEW):
        assert node.run(NEW, "--check").returncode == 0
        assert node.release() == node.copy.read_bytes() == NEW
        # The seed's distributor, `cp -f` over the copy, writes in place.
        foreign = node.payloads / "foreign"
        foreign.write_bytes(HAMI)
        subprocess.run(["cp", "-f", foreign, node.copy], check=True)
        until(lambda: node.copy.read_bytes() == NEW, "the copy is restored")
        node.current.unlink()
        until(node.current.exists, "the current release is restored")
        (node.current.parent / node.current.read_text().strip() / "libvgpu.so").unlink()
        until(lambda: node.run(NEW, "--check").returncode == 0, "the release is restored")
        # It fails if the distributor restores a file before the directory is removed.
        subprocess.run(["rm", "-r", node.store], capture_output=True)
        until(lambda: node.run(NEW, "--check").returncode == 0, "the whole store is restored")
    assert node.run(NEW, "--check").returncode == 0


def test_the_check_option_names_the_wrong_file(node: Node) -> None:
    done = node.run(NEW, "--check")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(r"store/current: must be [0-9a-f]{64}, is None\n", done.stderr)
    assert not node.store.exists()
    with node.distributor(NEW):
        pass
    done = node.run(OLD, "--check")
    assert (done.returncode, "store/current: must be" in done.stderr) == (1, True)


def test_of_two_the_last_started_is_in_charge(node: Node) -> None:
    with node.distributor(OLD) as first:
        with node.distributor(NEW) as second:
            node.copy.unlink()
            until(lambda: "started later and is in charge: pid=" in first.read_text(), "it yields")
            until(node.copy.exists, "the copy is restored")
            assert node.release() == node.copy.read_bytes() == NEW
            assert "in charge" not in second.read_text()
        assert node.release() == NEW
    assert first.read_text().count('msg="files restored"') == 3
    with node.distributor(OLD):
        assert node.release() == node.copy.read_bytes() == OLD


def test_an_error_is_logged_once_and_retried(node: Node) -> None:
    node.store.parent.write_text("in the way")
    log = node.payloads / "log"
    with log.open("w") as errors:
        process = subprocess.Popen(node.command(NEW), cwd=ROOT, stderr=errors)
    try:
        until(lambda: "not published, retried" in log.read_text(), "the error is logged")
        assert node.run(NEW, "--check").returncode == 1
        node.store.parent.unlink()
        until(lambda: 'msg="library published"' in log.read_text(), "it has published")
        assert log.read_text().count("not published") == 1
    finally:
        process.kill()
        process.wait()


def test_hamis_library_is_copied_only(node: Node) -> None:
    with node.distributor(OLD):
        pass
    with node.distributor(HAMI, "--source", "hami"):
        assert node.copy.read_bytes() == HAMI
        assert not node.current.exists()
        assert node.run(HAMI, "--source", "hami", "--check").returncode == 0


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
    with node.distributor(OLD):
        pass
    done = node.run(data)
    assert done.returncode == 2
    assert re.search(r"error: --library: invalid value '.*': must be ", done.stderr)
    assert why in done.stderr
    assert node.release() == OLD


def test_a_file_that_is_missing_is_refused(node: Node) -> None:
    command = [*node.command(OLD), "--library", "/absent/libvgpu.so"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "invalid value '/absent/libvgpu.so': must be a readable file: No such" in done.stderr


def test_help_describes_the_files() -> None:
    command = [sys.executable, "-m", "nri_plugin", "distribute", "--help"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for text in ("store/current", "Running\ncontainers keep", "--source hami", "examples:"):
        assert text in said
