"""A program linked with -lcuda, over the null driver: races, kills, threads, forks; never over.

The processes count their common memory themselves, without the library.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from contract import grant_file, names, region_file
from shim import region
from tests.shim.conftest import Host

pytestmark = pytest.mark.sim

_LIMIT_BYTES = 1 << 30
_ROUNDS = 2000
_WHOLE_RACE = "GPUSLICE_WHOLE_RACE" in os.environ
"""Unless it is set, more than two racers run fewer rounds: seconds instead of minutes."""
_GRANULE_BYTES = 2 << 20
_NULL_GPU = "GPU-6e756c6c-0000-4000-8000-000000000000"
_SOURCE = Path(__file__).parent / "c" / "driver_program.c"


@pytest.fixture(scope="module")
def program(build_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    binary = tmp_path_factory.mktemp("program") / "driver-program"
    driver = build_dir / "lib" / "null"
    flags = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread")
    subprocess.run(
        ["gcc", *flags, "-o", binary, _SOURCE, f"-L{driver}", "-l:libcuda.so.1"], check=True
    )
    return binary


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    region.create(tmp_path, [grant_file.Gpu(_NULL_GPU, _LIMIT_BYTES, 100, 0)])
    return tmp_path


def _used(directory: Path) -> int:
    return region.status(directory)[0].use.used_bytes


def _live_slots(directory: Path) -> int:
    geometry = region_file.Geometry(1)
    data = (directory / names.FILE_REGION).read_bytes()
    slots = range(geometry.slots_offset, geometry.file_bytes, geometry.slot_stride)
    return sum(region_file.SLOT.unpack(data, at)["state"] == region_file.SLOT_LIVE for at in slots)


@pytest.mark.parametrize("processes", [2, 4, 8, 16, 32, 64])
def test_row_18_of_processes_that_race_for_the_last_block_one_wins(
    null_host: Host, program: Path, directory: Path, processes: int
) -> None:
    """Each racer's driver is as slow as its number, from 0 to a millisecond."""
    rounds = _ROUNDS if _WHOLE_RACE else min(_ROUNDS, 4000 // processes)
    done = null_host.run([program, "race", str(processes), str(rounds)], directory)
    assert done.stdout == f"0 {rounds} 0 {_LIMIT_BYTES}\n"


def test_without_the_library_they_all_win(null_host: Host, program: Path, directory: Path) -> None:
    """The control: it is the library that the test above observes."""
    done = null_host.run([program, "race", "2", "50"], directory, preload=False)
    won_by_none, won_by_one, won_by_more, _ = map(int, done.stdout.split())
    assert (won_by_none, won_by_one, won_by_more) == (0, 0, 50)


def test_after_three_thousand_kills_one_attach_finds_everything_returned(
    null_host: Host, program: Path, directory: Path
) -> None:
    null_host.run([program, "kill", "3000", "8"], directory)
    null_host.run([program, "threads", "1"], directory)
    assert _used(directory) == _GRANULE_BYTES, "its own, and it has just ended"


def test_threads_that_start_cuda_at_once_share_one_slot(
    null_host: Host, program: Path, directory: Path
) -> None:
    with subprocess.Popen(
        [program, "threads", "32"],
        env=null_host.environment(directory),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == f"{32 * _GRANULE_BYTES}\n"
        assert (_used(directory), _live_slots(directory)) == (32 * _GRANULE_BYTES, 1)
        running.communicate("\n")
    assert running.returncode == 0


def test_fork_while_another_thread_is_inside_an_allocation(
    null_host: Host, program: Path, directory: Path
) -> None:
    """Whatever lock the thread held, the child, which lacks that thread, continues."""
    null_host.run([program, "fork", "300"], directory)
    null_host.run([program, "threads", "1"], directory)
    assert _used(directory) == _GRANULE_BYTES
