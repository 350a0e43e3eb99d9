"""Slots: the charges that remain and those that are dropped, for every action of a program."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from gpuslice.contract import region_file
from tests.shim.region.core import LIMIT_BYTES, Box, Shell
from tests.support import until

pytestmark = pytest.mark.sim
HELD = 1000


def _lock(slot: int, kind: int = fcntl.F_WRLCK) -> bytes:
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, region_file.LOCK_LIVE + slot, 1, 0)


def _pids(box: Box) -> dict[int, int]:
    return {slot.number: slot.pid for slot in box.slots() if slot.state}


def _locked(box: Box, slot: int) -> bool:
    with box.region.open("r+b") as file:
        answer = fcntl.fcntl(file.fileno(), fcntl.F_OFD_GETLK, _lock(slot))
    return int(struct.unpack_from("h", answer)[0]) != int(fcntl.F_UNLCK)


def _newcomer_takes_the_first_slot(box: Box) -> None:
    with box.shell() as newcomer:
        newcomer.ask("attach")
        assert _pids(box) == {0: newcomer.pid}


@pytest.mark.parametrize(("command", "answer"), [("fork used 0", "0"), ("clone", "")])
def test_row_23_a_child_outlives_its_parent_without_its_charge(
    box: Box, command: str, answer: str
) -> None:
    with box.holding(HELD) as parent:
        assert parent.child(command) == answer
        assert box.used() == HELD
        parent.kill()
        assert not _locked(box, 0)
        assert box.used_seen_afresh() == 0
        _newcomer_takes_the_first_slot(box)


def test_a_lock_that_outlives_its_process_saves_no_charge_but_the_slot_is_not_reused(
    box: Box,
) -> None:
    with box.holding(HELD) as holder, box.region.open("r+b") as file:
        holder.kill()
        fcntl.fcntl(file.fileno(), fcntl.F_OFD_SETLK, _lock(0))
        assert box.used_seen_afresh() == 0
        with box.shell() as newcomer:
            newcomer.ask("attach")
            assert _pids(box)[1] == newcomer.pid
        fcntl.fcntl(file.fileno(), fcntl.F_OFD_SETLK, _lock(0, fcntl.F_UNLCK))
    _newcomer_takes_the_first_slot(box)


@pytest.mark.parametrize("actions", ["close-range", "end-main", "drop-lock end-main"])
def test_a_process_runs_on_without_its_descriptors_or_its_main_thread(
    box: Box, actions: str
) -> None:
    with box.holding(HELD) as holder:
        for action in actions.split():
            assert holder.ask(action) == "OK"
        if "end-main" in actions:
            maps = Path(f"/proc/{holder.pid}/maps")
            until(lambda: maps.read_text() == "", "the main thread's end")
        assert _locked(box, 0) is ("drop-lock" not in actions)
        assert box.used_seen_afresh() == HELD
        holder.ask("refund 0 200")
        assert holder.ask("reserve 0 1") == "OK"
        assert box.used_seen_afresh() == HELD - 199
        assert box.used_without(holder) == 0


def test_no_descriptor_stays_open(box: Box) -> None:
    with box.shell() as holder:
        holder.ask("used 0")  # load all libraries first
        before = os.listdir(f"/proc/{holder.pid}/fd")
        holder.ask(f"reserve 0 {HELD}")
        assert os.listdir(f"/proc/{holder.pid}/fd") == before


@pytest.mark.parametrize("look", ["attach", "peek"])
def test_exec_ends_the_former_charge(box: Box, look: str) -> None:
    """The executed program keeps the PID, and maps the region too. The former charge is dropped
    even if the new program only reads the region."""
    with box.holding(HELD) as holder:
        holder.send(f"exec {box.program} shell")
        assert holder.ask(look) == "OK"
        assert holder.ask("used 0") == "0"
        assert box.used_seen_afresh() == 0


@pytest.mark.parametrize("step", ["APPLY_PUBLISHED", "COUNTER_SWAPPED", "APPLY_DONE"])
def test_a_thread_that_ends_inside_a_reservation_wedges_no_other(box: Box, step: str) -> None:
    with box.shell() as holder:
        assert holder.ask("attach") == "OK"
        assert holder.ask(f"end {step} 1") == "OK"
        holder.ask("thread reserve 0 1000")
        assert holder.ask("reserve 0 7") == "OK"
        assert box.used() == (7 if step == "APPLY_PUBLISHED" else 1007)
        assert box.used_without(holder) == 0


def test_a_process_without_descriptors_takes_none_for_exited(box: Box) -> None:
    """The process can open the region, but has no descriptor to read other processes' /proc."""
    with box.holding(HELD) as holder, box.shell() as poor:
        assert poor.ask("attach") == "OK"
        there = len(os.listdir(f"/proc/{poor.pid}/fd"))
        hard = resource.prlimit(poor.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(poor.pid, resource.RLIMIT_NOFILE, (there + 1, hard))
        assert poor.ask(f"reserve 0 {LIMIT_BYTES}") == "OVER_LIMIT"
        assert box.used() == HELD
        holder.kill()
        assert poor.ask(f"reserve 0 {LIMIT_BYTES}") == "OK", "gone is seen without any"


def test_a_process_whose_maps_may_not_be_read_counts_as_running(box: Box) -> None:
    """A process without capabilities cannot read the holder's /proc/PID/maps."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root, to give capabilities up (setpriv)")
    with box.holding(HELD) as holder, box.shell("setpriv", "--bounding-set=-all") as stranger:
        assert holder.ask("drop-lock") == "OK"
        assert stranger.ask("attach") == "OK"
        assert stranger.ask("used 0") == str(HELD)
        holder.kill()
        until(lambda: stranger.ask("used 0") == "0", "the exited process's bytes")


def test_a_process_counted_as_exited_takes_a_new_slot_with_its_charge(box: Box) -> None:
    """A running process appears exited if its slot lacks the lock and the start time. The process
    detects that its slot was freed, and attaches again."""
    with box.holding(HELD) as holder, box.shell() as neighbour:
        neighbour.ask("attach")
        assert holder.ask("drop-lock") == "OK"
        box.forge(0, "start_ticks", 0)
        assert neighbour.ask(f"reserve 0 {LIMIT_BYTES}") == "OK", "it freed the holder's slot"
        neighbour.ask(f"refund 0 {LIMIT_BYTES}")
        assert holder.ask("reserve 0 10") == "OK"
        assert box.used() == HELD + 10
        assert {*_pids(box).values()} == {holder.pid, neighbour.pid}
        holder.ask(f"refund 0 {HELD}")
        assert box.used() == 10
        assert box.used_without(holder) == 0


def test_a_process_whose_charge_was_dropped_charges_it_again(box: Box) -> None:
    """The holder's start time is changed, so others take it for exited and drop its charge."""
    with box.holding(HELD) as holder:
        start = box.slots()[0].start_ticks
        assert holder.ask("drop-lock") == "OK"
        box.forge(0, "start_ticks", start - 1)
        assert box.used_seen_afresh() == 0
        box.forge(0, "start_ticks", start)
        holder.ask("refund 0 1")
        assert box.used_seen_afresh() == HELD - 1


@pytest.mark.parametrize(
    ("step", "passage"), [("APPLY_OWNED", 1), ("APPLY_PUBLISHED", 1), ("COUNTER_HELPED", 2)]
)
def test_of_two_processes_that_claim_a_slot_neither_counts_for_the_other(
    box: Box, step: str, passage: int
) -> None:
    """The heir takes the holder's slot. Both processes' first operations have the same number."""
    with box.shell() as holder, box.shell() as heir, box.shell() as neighbour:
        assert holder.ask("attach") == "OK"
        assert holder.ask("drop-lock") == "OK"
        assert neighbour.ask("reserve 0 100000") == "OK"
        assert holder.stops_at(step, passage, "reserve 0 1000")
        box.forge(0, "start_ticks", 0)
        assert box.used_seen_afresh() == 100000, "it freed the holder's slot"
        assert heir.ask("attach") == "OK"
        assert _pids(box) == {0: heir.pid, 1: neighbour.pid}
        assert heir.stops_at("APPLY_PUBLISHED", 1, "reserve 0 7")
        assert [holder.resume(), heir.resume()] == ["OK", "OK"]
        charged = {slot.pid: slot.bytes for slot in box.slots() if slot.state}
        assert charged == {holder.pid: 1000, heir.pid: 7, neighbour.pid: 100000}
        assert box.used() == 101007
        assert box.used_without(holder, heir) == 100000


@pytest.mark.parametrize(
    "step", ["REAP_VERDICT", "COUNTER_READ", "COUNTER_HELPED", "DROP_READ", "DROP_SWAPPED"]
)
def test_a_verdict_is_about_one_holder_not_about_the_next(box: Box, step: str) -> None:
    """A process that found an exited holder stops. Meanwhile another process takes that slot."""
    with box.holding(HELD) as victim, box.shell() as dawdler, box.shell() as heir:
        victim.kill()
        assert dawdler.stops_at(step, 1, "attach")
        assert heir.ask("reserve 0 77") == "OK"
        assert _pids(box) == {0: heir.pid}
        assert dawdler.resume() == "OK"
        assert (box.used(), box.slots()[0].bytes) == (77, 77)


def test_a_refusal_counts_no_process_that_exited_after_the_last_search(box: Box) -> None:
    """Searches are at least a millisecond apart, except that a refusal follows a new search."""
    with box.shell() as survivor:
        survivor.ask("attach")
        for _ in range(20):
            with box.holding(LIMIT_BYTES):
                survivor.ask("used 0")
            assert survivor.ask(f"reserve 0 {LIMIT_BYTES}") == "OK"
            survivor.ask(f"refund 0 {LIMIT_BYTES}")


def test_an_exit_is_visible_to_processes_that_did_not_detect_it(box: Box) -> None:
    """A process whose allocation the driver refuses waits if any process has dropped an exited
    process's charge just before."""
    minute_ns = 60 * 10**9
    two = box.of_gpus(2)
    with two.shell() as newcomer, two.shell() as looker, two.shell() as victim:
        assert newcomer.ask("attach") == "OK"
        victim.ask(f"reserve 1 {HELD}")
        victim.kill()
        assert newcomer.ask(f"dropped 1 {minute_ns}") == "0"
        assert looker.ask("peek") == "OK"
        assert looker.ask("used 1") == "0"
        assert [newcomer.ask(f"dropped {gpu} {minute_ns}") for gpu in (0, 1, 2)] == list("010")
        assert newcomer.ask("dropped 1 0") == "0"


@pytest.mark.parametrize("step", ["CLAIM_LOCKED", "CLAIM_LIVE", "CLAIM_NAMED"])
def test_a_claim_cut_short_hides_no_slot_above_it(box: Box, step: str) -> None:
    """A search ends at the first slot never taken. A claim that was begun counts as taken."""
    with box.shell() as first, box.shell() as second:
        assert first.stops_at(step, 1, "attach")
        assert second.ask(f"reserve 0 {HELD}") == "OK"
        assert [slot.bytes for slot in box.slots()] == [0, HELD]
        assert box.used_without(first, second) == 0
        _newcomer_takes_the_first_slot(box)


@pytest.fixture
def nested() -> list[str]:
    """The prefix of a command that runs in a PID namespace of its own, with its own /proc."""
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("unshare --pid needs root")
    return command


def _end(shell: Shell, box: Box, slot: int) -> None:
    """Kill the shell, and wait until the kernel has released the lock of the slot."""
    shell.kill()
    until(lambda: not _locked(box, slot), "the lock's end")


def test_a_proc_of_another_namespace_is_ignored(box: Box, nested: list[str]) -> None:
    """PID 1 of a PID namespace may see the host's /proc. There, PID 1 is another process."""
    prefix = [word for word in nested if word != "--mount-proc"]
    with box.shell(*prefix) as inside:
        assert inside.ask(f"reserve 0 {HELD}") == "OK"
        assert box.slots()[0].start_ticks == 0
        assert box.used_seen_afresh() == HELD
        _end(inside, box, 0)
        assert box.used_seen_afresh() == 0


def test_row_22_pid_1_of_two_containers_that_share_a_file(box: Box, nested: list[str]) -> None:
    """Two processes have the same PID in their namespaces. One's exit leaves the other's charge."""
    with box.shell(*nested) as first, box.shell(*nested) as second:
        assert first.ask(f"reserve 0 {HELD}") == "OK"
        assert second.ask("reserve 0 500") == "OK"
        assert _pids(box) == {0: 1, 1: 1}
        assert box.used_seen_afresh() == HELD + 500, "seen from outside both live"
        assert second.ask("used 0") == str(HELD + 500)
        assert first.ask("attach") == "OK"
        _end(first, box, 0)
        assert box.used_seen_afresh() == 500
        assert second.ask("reserve 0 1") == "OK"
        _end(second, box, 1)
        assert box.used_seen_afresh() == 0
