"""Bookings and processes of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.gpu.bookings import Booking, Bookings, Kind, Part
from tests.support import GIB

A, B = "GPU-a", "GPU-b"
CAPACITY = {A: 32 * GIB, B: 7}
PID = 5_000_000
"""A process number above the kernel's largest."""


def booking(
    key: str, *parts: Part, pid: int = PID, ticks: int = 1, kind: Kind = "program", name: str = ""
) -> Booking:
    return Booking(key, name or key, parts, pid, ticks, kind, f"/dev/shm/{key}")


def silent() -> None:
    """Docker does not answer."""


class Proc:
    """A /proc with the processes of a test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def start(self, pid: int, ticks: int = 1, state: str = "S", threads: int = 1) -> None:
        (self.directory / str(pid)).mkdir(parents=True, exist_ok=True)
        between = "0 " * 16
        line = f"{pid} (a) (b) {state} {between}{threads} 0 {ticks} 0"
        (self.directory / str(pid) / "stat").write_text(line)

    def kill(self, pid: int) -> None:
        (self.directory / str(pid) / "stat").unlink(missing_ok=True)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    made = Proc(tmp_path / "proc")
    made.start(PID)
    return made


@pytest.fixture
def bookings(tmp_path: Path, proc: Proc) -> Bookings:
    return Bookings(tmp_path / "bookings", proc.directory)
