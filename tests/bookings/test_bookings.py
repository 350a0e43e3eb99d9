"""Bookings never exceed a GPU, whichever processes end, wait for each other or write odd files."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gpuslice.gpu.bookings import Booking, Bookings, FullError, Kind, Part, started_ticks
from tests.bookings.making import CAPACITY, PID, A, B, Proc, booking, silent
from tests.bookings.making import bookings as bookings
from tests.bookings.making import proc as proc
from tests.support import GIB, ROOT


class AnyOrder(RuleBasedStateMachine):
    """A GPU of 8 bytes and 100 percent. What lives is known here without any file."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        directory = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.proc = Proc(directory / "proc")
        self.bookings = Bookings(directory / "bookings", self.proc.directory)
        self.now = 0
        self.ticks: dict[int, int] = {}
        self.docker: set[str] = set()
        self.booked: dict[str, Booking] = {}
        for pid in (PID, PID + 1):
            self.start(pid)

    def teardown(self) -> None:
        self.stack.close()

    def lives(self, each: Booking) -> bool:
        runs = self.ticks.get(each.pid) == each.started_ticks
        return runs or (each.kind == "container" and each.key in self.docker)

    def start(self, pid: int) -> None:
        self.now += 1
        self.ticks[pid] = self.now
        self.proc.start(pid, self.now)

    @rule(pid=st.integers(PID, PID + 1), again=st.booleans())
    def kill(self, pid: int, again: bool) -> None:
        """The process number may be used again, with another start."""
        self.ticks.pop(pid, None)
        self.proc.kill(pid)
        if again:
            self.start(pid)

    @rule(key=st.sampled_from("abc"), listed=st.booleans())
    def list_or_remove(self, key: str, listed: bool) -> None:
        self.docker = self.docker | {key} if listed else self.docker - {key}

    @rule(
        key=st.sampled_from("abc"),
        size=st.integers(1, 8),
        core=st.sampled_from([0, 30, 100]),
        pid=st.integers(PID, PID + 1),
        kind=st.sampled_from(["program", "container"]),
        answers=st.booleans(),
    )
    def book(self, key: str, size: int, core: int, pid: int, kind: Kind, answers: bool) -> None:
        """Exactly what fits is granted. Without Docker's answer, all containers' bookings count."""
        if pid not in self.ticks:
            self.start(pid)
        wanted = booking(key, Part(A, size, core), pid=pid, ticks=self.ticks[pid], kind=kind)
        self.forget(answers)
        others = [each.parts[0] for each in self.booked.values() if each.key != key]
        fits = sum(p.memory_bytes for p in others) + size <= 8
        fits &= not core or sum(p.core_percent for p in others) + core <= 100
        with self.bookings.locked():
            try:
                self.bookings.book(wanted, {A: 8}, lambda: self.docker if answers else None)
                assert fits
                self.booked[key] = wanted
            except FullError:
                assert not fits

    def forget(self, answers: bool) -> None:
        self.booked = {
            key: each
            for key, each in self.booked.items()
            if self.lives(each) or (each.kind == "container" and not answers)
        }

    @rule(key=st.sampled_from("abc"))
    def free(self, key: str) -> None:
        self.booked.pop(key, None)
        with self.bookings.locked():
            self.bookings.free(key)

    @invariant()
    def no_more_is_booked_than_there_is(self) -> None:
        self.forget(answers=False)
        with self.bookings.locked():
            live = self.bookings.live(silent)
        assert {each.key for each in live} == self.booked.keys()
        parts = [part for each in live for part in each.parts]
        assert sum(part.memory_bytes for part in parts) <= 8
        assert sum(part.core_percent for part in parts) <= 100


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=50, stateful_step_count=30)


def test_a_refusal_says_what_is_free_and_what_has_the_rest(bookings: Bookings) -> None:
    web = booking("web", Part(A, 20 * GIB, 30), Part(B, 7, 0), kind="container")
    program = booking("x", Part(A, 8 * GIB, 0), name="python\x1b")
    rows = {
        Part(A, 4 * GIB + 1, 0): "--memory: invalid value 4294967297B: must be at most 4GiB, what",
        Part(A, GIB, 71): "--core: invalid value 71: must be at most 70, what",
        Part(B, 1, 0): "--memory: invalid value 1B: must be at most 0B, what",
    }
    holders = {
        A: f"GPU-a: web has 20GiB and 30 %, pid {PID} (python?) has 8GiB",
        B: "GPU-b: web has 0B",
    }
    with bookings.locked():
        for each in (web, program):
            bookings.book(each, CAPACITY, silent)
        for part, text in rows.items():
            with pytest.raises(FullError) as refused:
                bookings.book(booking("y", part), CAPACITY, silent)
            assert str(refused.value) == f"{text} is free of {holders[part.uuid]}"
        bookings.book(booking("y", Part(A, 4 * GIB, 70)), CAPACITY, silent)


@pytest.mark.parametrize(
    ("state", "threads", "lives"),
    [("S", 1, True), ("Z", 1, False), ("Z", 2, True), ("X", 0, False)],
)
def test_a_zombie_lives_only_while_it_has_threads(
    proc: Proc, state: str, threads: int, lives: bool
) -> None:
    proc.start(PID, 5, state, threads)
    assert started_ticks(PID, proc.directory) == (5 if lives else None)


def test_a_reused_process_number_is_another_process(bookings: Bookings, proc: Proc) -> None:
    with bookings.locked():
        bookings.book(booking("x", Part(A, 1, 0)), CAPACITY, silent)
        assert len(bookings.live(silent)) == 1
        proc.start(PID, 2)
        assert bookings.live(silent) == []


def test_a_process_that_proc_hides_lives(tmp_path: Path) -> None:
    """/proc may be mounted with hidepid=2."""
    bookings = Bookings(tmp_path / "bookings", tmp_path)
    with bookings.locked():
        bookings.book(booking("hidden", Part(A, 1, 0), pid=os.getpid()), CAPACITY, silent)
        assert [each.key for each in bookings.live(silent)] == ["hidden"]


def test_a_process_that_makes_its_container_and_ends_while_docker_is_asked(
    bookings: Bookings, proc: Proc
) -> None:
    """Docker's list is older than the container."""
    proc.start(PID + 1)

    def listed() -> set[str]:
        proc.kill(PID + 1)
        return set()

    made = booking("made", Part(A, 1, 0), pid=PID + 1, kind="container")
    gone = booking("gone", Part(A, 1, 0), pid=PID + 2, kind="container")
    with bookings.locked():
        for each in (gone, made):
            bookings.book(each, CAPACITY, silent)
        assert [each.key for each in bookings.live(listed)] == ["made"]


RACER = """
import os, sys, time
from pathlib import Path
from gpuslice.gpu.bookings import *
bookings = Bookings(Path(sys.argv[1]))
own = Booking(str(os.getpid()), "r", (Part("GPU-a", 2, 0),), os.getpid(),
              started_ticks(os.getpid()), "program", "/")
got = 0
print("ready", flush=True)
sys.stdin.readline()
end = time.monotonic() + 20
while got < 10 and time.monotonic() < end:
    with bookings.locked():
        try:
            bookings.book(own, {"GPU-a": 3}, lambda: None)
        except FullError:
            continue
    got += 1
    time.sleep(0.001)
    with bookings.locked():
        assert len(bookings.live(lambda: None)) == 1
        bookings.free(own.key)
print(got)
"""


def test_processes_that_race_for_the_last_bytes(tmp_path: Path) -> None:
    """Each time one of them gets the GPU."""
    command = [sys.executable, "-c", RACER, str(tmp_path / "bookings")]
    pipe = subprocess.PIPE
    with ExitStack() as stack:
        racers = [
            stack.enter_context(
                subprocess.Popen(command, cwd=ROOT, text=True, stdin=pipe, stdout=pipe)
            )
            for _ in range(3)
        ]
        for each in racers:
            assert each.stdout and each.stdout.readline() == "ready\n"
        for each in racers:
            assert each.stdin
            each.stdin.write("\n")
            each.stdin.flush()
        got = [each.communicate()[0] for each in racers]
    assert [each.returncode for each in racers] == [0, 0, 0]
    assert sum(map(int, got)) >= 10
