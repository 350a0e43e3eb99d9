"""Processes as in containers: many, forking, executing, twice the same library, reused pids. One
line of the matrix of behaviours each, through the driver's calls or the core alone.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuslice.contract import grant_file, names
from shim import region
from tests.shim.conftest import GIB, MIB, NULL_GPU, Grants, Host, set_limit
from tests.shim.region.core import Box
from tests.support import until
from tests.talking import Talk, talkers

pytestmark = pytest.mark.sim


@pytest.fixture
def null_box(tmp_path: Path, build_dir: Path) -> Box:
    """A grant of the null driver's GPU; its slots can be read."""
    region.create(tmp_path, [grant_file.Gpu(NULL_GPU, 1 << 30, 100, 0)])
    return Box(tmp_path, build_dir / "bin" / "vgpu-core-test")


def _free(talk: Talk) -> int:
    code, free, _ = map(int, talk.ask("info").split())
    assert code == 0
    return free


def test_row_19_a_killed_holders_memory_is_there_for_the_next(
    slow_host: Host, grants: Grants
) -> None:
    """The GPU's teardown ends a while after the exit; the next allocation waits for it."""
    directory = grants.make(GIB)
    with slow_host.talker(directory) as survivor, slow_host.talker(directory) as holder:
        free_bytes = _free(survivor)
        assert holder.ask(f"alloc {free_bytes}").startswith("0 ")
        assert survivor.ask(f"alloc {free_bytes}") == "2"
        holder.kill()
        began = time.monotonic()
        assert survivor.ask(f"alloc {free_bytes}").startswith("0 ")
        assert time.monotonic() - began < 20, "a second, and what a busy machine adds"


def test_row_19_reports_omit_exited_processes_without_any_pressure(
    slow_host: Host, grants: Grants
) -> None:
    directory = grants.make(GIB)
    with slow_host.talker(directory) as survivor, slow_host.talker(directory) as holder:
        before = _free(survivor)
        assert holder.ask(f"alloc {200 * MIB}").startswith("0 ")
        assert _free(survivor) == before - 200 * MIB
        holder.kill()
        until(lambda: _free(survivor) >= before, "the killed process's bytes in a report")


def test_row_20_ended_processes_disturb_no_other(null_host: Host, null_box: Box) -> None:
    """A, B, C run; A and B end; D starts and takes one of their slots; C allocates."""
    environment = null_host.environment(null_box.directory)
    with talkers(*[environment] * 3) as (a_process, b_process, c_process):
        for talk in (a_process, b_process, c_process):
            assert talk.ask(f"alloc {100 * MIB}").startswith("0 ")
        a_process.end("exit")
        b_process.end("exit")
        with null_host.talker(null_box.directory) as d_process:
            assert d_process.ask(f"alloc {400 * MIB}").startswith("0 ")
            assert c_process.ask(f"alloc {600 * MIB}") == "2"
            assert c_process.ask(f"alloc {GIB - 500 * MIB}").startswith("0 ")
            assert null_box.use().used_bytes == GIB
            assert d_process.ask(f"alloc {2 * MIB}") == "2"


def test_row_24_eleven_hundred_processes(box: Box) -> None:
    """Processes continue up to the number of slots. The others are refused."""
    with box.shell() as parent:
        said = Counter(parent.child("fork reserve 0 1000")[1] for _ in range(1100))
        assert said == {"OK": names.MAX_SLOTS, "NO_SLOT": 1100 - names.MAX_SLOTS}
        assert box.use().used_bytes == 1000 * names.MAX_SLOTS
    assert box.used_seen_afresh() == 0


@pytest.mark.parametrize("raise_to", [800 * MIB, GIB])
def test_a_limit_below_what_is_used_takes_nothing_and_gives_nothing(
    null_host: Host, null_box: Box, raise_to: int
) -> None:
    with null_host.talker(null_box.directory) as talk:
        assert talk.ask(f"alloc {600 * MIB}") == "0 0"
        set_limit(null_box.directory, 300 * MIB)
        assert _free(talk) == 0
        assert talk.ask(f"alloc {2 * MIB}") == "2"
        assert talk.ask("info").split()[2] == str(300 * MIB)
        set_limit(null_box.directory, raise_to)
        assert _free(talk) == raise_to - 600 * MIB, "at the very next call"
        assert talk.ask(f"alloc {raise_to - 600 * MIB}") == "0 1"
        set_limit(null_box.directory, 1)
        assert talk.ask("free 0") == "0"
        assert talk.ask("free 1") == "0"
        assert null_box.use().used_bytes == 0


def _by_rename(library: Path, path: Path) -> None:
    fresh = path.with_suffix(".new")
    shutil.copy(library, fresh)
    fresh.rename(path)


def _another_build(library: Path, path: Path) -> None:
    """The same code and another file content, as another release has."""
    fresh = path.with_suffix(".new")
    shutil.copy(library, fresh)
    subprocess.run(["strip", "--strip-debug", fresh], check=True)
    fresh.rename(path)


@pytest.mark.parametrize("replace", [_by_rename, _another_build])
def test_row_47_the_library_is_replaced_while_in_use(
    null_host: Host, null_box: Box, tmp_path: Path, replace: Callable[[Path, Path], None]
) -> None:
    path = tmp_path / "libvgpu.so"
    shutil.copy(null_host.library, path)
    installed = Host(path, null_host.driver_dir)
    with installed.talker(null_box.directory) as old:
        assert old.ask(f"alloc {400 * MIB}").startswith("0 ")
        replace(null_host.library, path)
        with installed.talker(null_box.directory) as new:
            assert new.ask(f"alloc {600 * MIB}").startswith("0 ")
            assert old.ask(f"alloc {30 * MIB}") == "2"
            assert new.ask(f"alloc {30 * MIB}") == "2"
            assert old.ask(f"alloc {24 * MIB}").startswith("0 ")
            assert null_box.use().used_bytes == GIB
            old.kill()
            assert new.ask(f"alloc {424 * MIB}").startswith("0 ")
