"""Processes as in containers: many, forking, executing, with the library twice, with reused PIDs.
Each test is one row of the matrix (test_matrix.py)."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from gpuslice.contract import names
from tests.shim.conftest import GIB, MIB, Grants, Host, change_grant, null_grant, used
from tests.shim.region.core import Box
from tests.support import until
from tests.talking import Talk

pytestmark = pytest.mark.sim


def _free(talk: Talk) -> int:
    code, free, _ = map(int, talk.ask("info").split())
    assert code == 0
    return free


def _allocates(talk: Talk, size: int) -> bool:
    """Allocate. Return False if the process is out of memory."""
    code = talk.ask(f"alloc {size}").split()[0]
    assert code in ("0", "2")
    return code == "0"


def test_row_19_a_killed_holders_memory_is_there_for_the_next(
    slow_host: Host, grants: Grants
) -> None:
    """The GPU frees a killed process's memory late. The next allocation waits until then."""
    directory = grants.make(GIB)
    with slow_host.talker(directory) as survivor, slow_host.talker(directory) as holder:
        free_bytes = _free(survivor)
        assert _allocates(holder, free_bytes)
        assert not _allocates(survivor, free_bytes)
        holder.kill()
        began = time.monotonic()
        assert _allocates(survivor, free_bytes)
        assert time.monotonic() - began < 20, "a second, and what a busy machine adds"


def test_row_19_reports_omit_exited_processes_without_any_pressure(
    slow_host: Host, grants: Grants
) -> None:
    directory = grants.make(GIB)
    with slow_host.talker(directory) as survivor, slow_host.talker(directory) as holder:
        before = _free(survivor)
        assert _allocates(holder, 200 * MIB)
        assert _free(survivor) == before - 200 * MIB
        holder.kill()
        until(lambda: _free(survivor) >= before, "the killed process's bytes in a report")


def test_row_20_ended_processes_disturb_no_other(null_host: Host, tmp_path: Path) -> None:
    """A, B and C run. A and B end. D starts, and takes one of their slots. C allocates."""
    grant = null_grant(tmp_path)
    with null_host.talker(grant) as c_process:
        with null_host.talker(grant) as a_process, null_host.talker(grant) as b_process:
            assert all(_allocates(talk, 100 * MIB) for talk in (a_process, b_process, c_process))
            a_process.end("exit")
            b_process.end("exit")
        with null_host.talker(grant) as d_process:
            assert _allocates(d_process, 400 * MIB)
            assert not _allocates(c_process, 600 * MIB)
            assert _allocates(c_process, GIB - 500 * MIB)
            assert used(grant) == GIB
            assert not _allocates(d_process, 2 * MIB)


def test_row_24_eleven_hundred_processes(box: Box) -> None:
    with box.shell() as parent:
        said = Counter(parent.child("fork reserve 0 1000") for _ in range(1100))
        assert said == {"OK": names.MAX_SLOTS, "NO_SLOT": 1100 - names.MAX_SLOTS}
        assert box.used() == 1000 * names.MAX_SLOTS
    assert box.used_seen_afresh() == 0


@pytest.mark.parametrize("raise_to", [800 * MIB, GIB])
def test_a_limit_below_what_is_used_takes_nothing_and_gives_nothing(
    null_host: Host, tmp_path: Path, raise_to: int
) -> None:
    grant = null_grant(tmp_path)
    with null_host.talker(grant) as talk:
        assert talk.ask(f"alloc {600 * MIB}") == "0 0"
        change_grant(grant, limit_bytes=300 * MIB)
        assert talk.ask("info") == f"0 0 {300 * MIB}"
        assert not _allocates(talk, 2 * MIB)
        change_grant(grant, limit_bytes=raise_to)
        assert _free(talk) == raise_to - 600 * MIB, "at the very next call"
        assert talk.ask(f"alloc {raise_to - 600 * MIB}") == "0 1"
        change_grant(grant, limit_bytes=1)
        assert [talk.ask("free 0"), talk.ask("free 1")] == ["0", "0"]
        assert used(grant) == 0


@pytest.mark.parametrize("rebuilt", [False, True], ids=["same", "another build"])
def test_row_47_the_library_is_replaced_while_in_use(
    null_host: Host, tmp_path: Path, rebuilt: bool
) -> None:
    """The library's file is replaced by a copy, or by a file with other bytes but the same code."""
    grant, path, fresh = null_grant(tmp_path), tmp_path / "libvgpu.so", tmp_path / "new.so"
    for copy in (path, fresh):
        shutil.copy(null_host.library, copy)
    if rebuilt:
        subprocess.run(["strip", "--strip-debug", fresh], check=True)
    installed = Host(path, null_host.driver_dir)
    with installed.talker(grant) as old:
        assert _allocates(old, 400 * MIB)
        fresh.rename(path)
        with installed.talker(grant) as new:
            assert _allocates(new, 600 * MIB)
            assert not _allocates(old, 30 * MIB)
            assert not _allocates(new, 30 * MIB)
            assert _allocates(old, 24 * MIB)
            assert used(grant) == GIB
            old.kill()
            assert _allocates(new, 424 * MIB)
