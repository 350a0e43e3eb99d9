"""Any order of events leaves no grant without a container, and frees none that lives."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpuslice.docker.containers import Container
from gpuslice.docker.grants import Grant, decode, device_name, encode
from gpuslice.docker.machine import Machine
from gpuslice.docker.reconciler import Reconciler
from gpuslice.gpu.bookings import Booking, Bookings, FullError, Part, started_ticks
from tests.docker.faking import FAILED, GPU, RUNNING, Docker, Files, grant, hosted


def _program(memory_bytes: int) -> Booking:
    ticks, parts = started_ticks(os.getpid()) or 0, [Part(GPU.uuid, memory_bytes, 0)]
    return Booking("other", "train", parts, os.getpid(), ticks, "program", "")


def test_a_grant_that_no_longer_fits_is_not_made_until_it_does(tmp_path: Path) -> None:
    """Also if its files and its spec are there, because Docker could then start the container."""
    files, docker, bookings, host = hosted(tmp_path)
    files.remake(grant())
    docker.known["web"] = replace(FAILED, id="web")
    with bookings.locked():
        bookings.book(_program(70), {GPU.uuid: GPU.most_bytes}, lambda: None)
    for _ in range(2):
        host.reconcile()
        assert not files.specs and docker.known["web"].status == "exited"
        assert "train" in files.notes["web"] and "--memory" in files.notes["web"]
    with bookings.locked():
        bookings.free("other")
    host.reconcile()
    assert docker.known["web"].running and files.notes["web"] == ""


def test_a_grant_whose_gpu_is_gone_is_not_made(tmp_path: Path) -> None:
    files, docker, _, host = hosted(tmp_path)
    files.remake(grant())
    files.inventory.gpus = []
    docker.known["web"] = replace(FAILED, id="web")
    host.reconcile()
    assert not files.specs and "GPU-a" in files.notes["web"]


def test_a_lost_text_is_made_again_from_the_label(tmp_path: Path) -> None:
    files, docker, _, host = hosted(tmp_path)
    docker.known["web"] = replace(FAILED, id="web")
    host.reconcile()
    assert files.texts == {"web": decode("web", encode(grant()))} and docker.known["web"].running


def test_a_container_removed_during_a_pass_is_not_made_again(tmp_path: Path) -> None:
    """Docker listed it, and `gpuslice rm` removed it before the pass changed anything."""
    files, docker, bookings, host = hosted(tmp_path)
    docker.known["web"] = replace(RUNNING, id="web")
    host.reconcile()
    files.remake(grant())
    host.reconcile()
    listed = docker.listed

    def raced() -> Sequence[Container]:
        found = listed()
        files.remove("web")
        with bookings.locked():
            bookings.free("web")
        return found

    docker.listed = raced  # type: ignore[method-assign]
    host.reconcile()
    assert not files.texts and not files.specs


def test_the_error_of_one_container_stops_no_other(tmp_path: Path) -> None:
    files, docker, _, host = hosted(tmp_path)
    for key in ("a", "b"):
        docker.known[key] = replace(FAILED, id=key, key=key, grant=encode(grant(key, 20)))
        docker.known[key] = replace(docker.known[key], error=device_name(key))
    remake = files.remake

    def failing(made: Grant) -> None:
        if made.key == "a":
            raise OSError("no space left")
        remake(made)

    files.remake = failing  # type: ignore[method-assign]
    host.reconcile()
    assert files.notes["a"] == "no space left"
    assert docker.known["b"].running and not docker.known["a"].running


class Orders(RuleBasedStateMachine):
    """Runs that are killed at each step, users, Docker, programs without containers, and reboots.
    A key is its container's id and name too."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.files, self.numbers = Files(), itertools.count()
        self.docker = Docker(self.files)
        self.wanted: set[str] = set()
        """The containers that Docker tries to start when it starts."""
        self.runs: dict[str, str] = {}
        """The living runs: the last step of each, by key."""
        self.programs: set[str] = set()
        self.bookings = Bookings(self.directory / "bookings")
        self.restart_host()

    def teardown(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def _book(self, booking: Booking) -> bool:
        with self.bookings.locked():
            try:
                self.bookings.book(booking, {GPU.uuid: GPU.most_bytes}, lambda: None)
            except FullError:
                return False
            return True

    # --- runs ---

    @rule(memory=st.sampled_from((30, 60)), core=st.sampled_from((0, 50, 60)))
    def book(self, memory: int, core: int) -> None:
        made, pid = grant(f"c{next(self.numbers)}", memory, core), os.getpid()
        parts, ticks = [Part(GPU.uuid, memory, core)], started_ticks(pid) or 0
        if self._book(Booking(made.key, made.key, parts, pid, ticks, "container", "")):
            self.files.texts[made.key] = made
            self.runs[made.key] = "booked"

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), restarts=st.booleans())
    def step(self, data: st.DataObject, restarts: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.runs)))
        made = self.files.texts[key]
        assert made is not None
        if self.runs[key] == "booked":
            self.files.remake(made)
            self.runs[key] = "made"
        elif self.docker.up and self.runs[key] == "made":
            text = encode(made)
            self.docker.known[key] = Container(key, key, key, text, "created", restarts)
            self.runs[key] = "created"
        elif self.docker.up and self.runs[key] == "created" and key in self.docker.known:
            self.docker.start(key)
            self.wanted |= {key} if restarts else set()
            self.runs[key] = "started"

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def kill_run(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.runs)))
        del self.runs[key]
        file = self.directory / "bookings" / key
        if file.exists():
            file.write_text(file.read_text().replace(f'"pid": {os.getpid()}', '"pid": 4194305'))

    # --- users ---

    @precondition(lambda self: self.docker.known and self.docker.up)
    @rule(data=st.data(), what=st.sampled_from(("rm", "stop", "start", "exit")))
    def use(self, data: st.DataObject, what: str) -> None:
        key = data.draw(st.sampled_from(sorted(self.docker.known)))
        if what == "rm":
            self.docker.remove(key, volumes=False)
        elif what in ("stop", "exit") and self.docker.known[key].running:
            self.docker.known[key] = replace(self.docker.known[key], status="exited")
        elif what == "start" and self.docker.known[key].status == "exited":
            try:
                self.docker.start(key)
            except OSError:
                return
        self.wanted -= {key} if what in ("rm", "stop") else set()

    @rule(memory=st.sampled_from((30, 80)))
    def program(self, memory: int) -> None:
        name, pid = f"p{next(self.numbers)}", os.getpid()
        parts = [Part(GPU.uuid, memory, 0)]
        ticks = started_ticks(pid) or 0
        if self._book(Booking(name, name, parts, pid, ticks, "program", "")):
            self.programs.add(name)

    @precondition(lambda self: self.programs)
    @rule()
    def program_ends(self) -> None:
        with self.bookings.locked():
            self.bookings.free(self.programs.pop())

    # --- the machine ---

    @rule()
    def stop_docker(self) -> None:
        self.docker.up = False

    @rule()
    def restart_docker(self) -> None:
        """Docker starts its containers, where it can."""
        self.docker.up = True
        for key in self.wanted & self.docker.known.keys():
            if not self.docker.known[key].running:
                try:
                    self.docker.start(key)
                except OSError:
                    continue

    @rule()
    def restart_host(self) -> None:
        daemon = cast(Any, self.docker)
        self.host = Reconciler(cast(Machine, self.files), self.bookings, daemon)
        self.host.reconcile(first=True)

    @rule()
    def follow(self) -> None:
        self.host.reconcile()

    @rule(docker_first=st.booleans())
    def reboot(self, docker_first: bool) -> None:
        for key in sorted(self.runs):
            self.kill_run_of(key)
        self.docker.up = False
        self.programs.clear()
        shutil.rmtree(self.directory / "bookings", ignore_errors=True)
        self.files.files.clear()
        self.files.specs.clear()
        for key, each in self.docker.known.items():
            status = "exited" if each.running else each.status
            self.docker.known[key] = replace(each, status=status)
        (self.restart_docker if docker_first else self.restart_host)()
        (self.restart_host if docker_first else self.restart_docker)()

    @rule()
    def lose_bookings(self) -> None:
        """The directory is removed while all runs on, and a program takes what seems free."""
        for key in sorted(self.runs):
            self.kill_run_of(key)
        self.programs.clear()
        shutil.rmtree(self.directory / "bookings", ignore_errors=True)
        self.program(80)
        self.restart_host()

    def kill_run_of(self, key: str) -> None:
        del self.runs[key]

    # --- what holds ---

    @invariant()
    def no_gpu_is_granted_twice(self) -> None:
        """A container that runs, or that Docker could start, and a program count."""
        with self.bookings.locked():
            live = self.bookings.live(lambda: None)
        booked = {each.key for each in live}
        running = {key for key, each in self.docker.known.items() if each.running}
        startable = self.files.specs & self.files.files & self.docker.known.keys()
        assert startable <= booked
        assert running <= booked | {key for key, why in self.files.notes.items() if why}
        assert sum(part.memory_bytes for each in live for part in each.parts) <= GPU.most_bytes
        assert sum(part.core_percent for each in live for part in each.parts) <= 100

    @invariant()
    def no_living_grant_is_freed(self) -> None:
        for key in (*self.docker.known, *self.runs):
            assert key in self.files.texts

    @rule()
    def settle(self) -> None:
        """Two passes without further events end all leaks. A second one frees what the first one
        removed from Docker, and a third one makes what then fits."""
        self.restart_docker()
        for _ in range(3):
            self.host.reconcile()
        kept = self.docker.known.keys() | self.runs.keys()
        assert self.files.texts.keys() == kept
        with self.bookings.locked():
            booked = {each.key for each in self.bookings.live(lambda: None)}
        assert booked - self.programs <= kept
        for key in self.wanted & self.docker.known.keys() - self.runs.keys():
            ended = self.docker.known[key].error == ""
            assert self.docker.known[key].running or ended or self.files.notes[key]


Orders.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
test_no_order_of_events_leaks_or_grants_twice = Orders.TestCase
