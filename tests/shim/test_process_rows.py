"""Processes as containers have them: many, forking, executing, twice the same library, numbers that
come again. One line of the matrix of behaviours each, through the driver's calls or the core alone.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from contract import grant_file
from shim import region
from tests.shim.conftest import Host
from tests.shim.core import Box, until

pytestmark = pytest.mark.sim

MIB = 1 << 20
NULL_CARD = "GPU-6e756c6c-0000-4000-8000-000000000000"


@pytest.fixture
def null_box(tmp_path: Path, build_dir: Path) -> Box:
    """A grant of the null driver's card; its slots can be looked at."""
    region.create(tmp_path, [grant_file.Card(NULL_CARD, 1 << 30, 100, 0)])
    return Box(tmp_path, build_dir / "bin" / "vgpu-core-test")


class Talk:
    """A program that answers each line with one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def ask(self, line: str) -> str:
        self.tell(line)
        return self.answer()

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    @property
    def comm(self) -> str:
        return Path(f"/proc/{self._process.pid}/comm").read_text().strip()


@contextmanager
def _talking(
    host: Host, command: list[str | Path], directory: Path, *, preload: bool = True
) -> Iterator[Talk]:
    with subprocess.Popen(
        command,
        env=host.environment(directory, preload=preload),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            yield Talk(running)
        finally:
            running.kill()


@contextmanager
def _two_copies(host: Host, box: Box, build_dir: Path) -> Iterator[Talk]:
    command: list[str | Path] = [
        build_dir / "bin" / "vgpu-two-copies",
        host.driver_dir / "libcuda.so.1",
        host.library,
    ]
    with _talking(host, command, box.directory, preload=False) as talk:
        assert talk.answer() == "ready"
        yield talk


def _charges(box: Box) -> list[int]:
    return sorted(slot.bytes[0] // MIB for slot in box.slots() if slot.state)


def test_two_copies_of_the_library_in_one_process_are_two_holders(
    null_host: Host, null_box: Box, build_dir: Path
) -> None:
    with _two_copies(null_host, null_box, build_dir) as talk:
        (first, second) = (slot for slot in null_box.slots() if slot.state)
        assert (first.pid, first.start_ticks) == (second.pid, second.start_ticks)
        charges = _charges(null_box)
        assert sum(charges) == null_box.use().used_bytes // MIB
        assert charges[0] >= 3 and charges[1] >= 5
        assert null_box.used_after_fresh_attach() // MIB == sum(charges), "both live"
        assert talk.ask("free 0") == "done"
        assert _charges(null_box)[1] == charges[1], "neither loses its charge"
        assert talk.ask("alloc 0") == "done"
        assert _charges(null_box) == charges
    assert null_box.used_after_fresh_attach() == 0


def test_exec_ends_the_charge_of_both_copies(
    null_host: Host, null_box: Box, build_dir: Path
) -> None:
    with _two_copies(null_host, null_box, build_dir) as talk:
        talk.tell("exec")
        until(lambda: talk.comm == "sleep", "exec")
        assert null_box.used_after_fresh_attach() == 0
