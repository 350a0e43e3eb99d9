"""A program linked with -lcuda, over the null driver: races, kills, threads, forks; never over.

The processes count their common memory themselves, without the library.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from gpuslice.contract import grant_file
from shim import region
from tests.shim.conftest import NULL_GPU, Host, used
from tests.shim.drivers import SOURCES, build

pytestmark = pytest.mark.sim

_LIMIT_BYTES = 1 << 30
_ROUNDS = 2000
_WHOLE_RACE = "GPUSLICE_WHOLE_RACE" in os.environ
"""Unless it is set, more than two racers run fewer rounds: seconds instead of minutes."""
_GRANULE_BYTES = 2 << 20


@pytest.fixture(scope="module")
def program(build_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = ("-O2", f"-L{build_dir / 'lib' / 'null'}", "-l:libcuda.so.1")
    program = tmp_path_factory.mktemp("program") / "driver-program"
    return build(program, SOURCES / "driver_program.c", *flags)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    region.create(tmp_path, [grant_file.Gpu(NULL_GPU, _LIMIT_BYTES, 100, 0)])
    return tmp_path


@pytest.mark.parametrize("processes", [2, 4, 8, 16, 32, 64])
def test_row_18_of_processes_that_race_for_the_last_block_one_wins(
    null_host: Host, program: Path, directory: Path, processes: int
) -> None:
    """Each racer's driver is as slow as its number, from 0 to a millisecond."""
    rounds = _ROUNDS if _WHOLE_RACE else min(_ROUNDS, 4000 // processes)
    done = null_host.run([program, "race", str(processes), str(rounds)], directory)
    assert done.stdout == f"0 {rounds} 0 {_LIMIT_BYTES}\n"


def test_without_the_library_every_process_gets_the_last_block(
    null_host: Host, program: Path, directory: Path
) -> None:
    """The control: it is the library that the test above observes."""
    done = null_host.run([program, "race", "2", "50"], directory, preload=False)
    won_by_none, won_by_one, won_by_more, _ = map(int, done.stdout.split())
    assert (won_by_none, won_by_one, won_by_more) == (0, 0, 50)


def test_after_three_thousand_kills_one_attach_finds_everything_returned(
    null_host: Host, program: Path, directory: Path
) -> None:
    null_host.run([program, "kill", "3000", "8"], directory)
    null_host.run([program, "threads", "1"], directory)
    assert used(directory) == _GRANULE_BYTES, "its own, and it has just ended"


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
        assert (used(directory), len(region.holders(directory))) == (32 * _GRANULE_BYTES, 1)
        running.communicate("\n")
    assert running.returncode == 0


def test_fork_while_another_thread_is_inside_an_allocation(
    null_host: Host, program: Path, directory: Path
) -> None:
    """Whatever lock the thread held, the child, which lacks that thread, continues."""
    null_host.run([program, "fork", "300"], directory)
    null_host.run([program, "threads", "1"], directory)
    assert used(directory) == _GRANULE_BYTES


@pytest.mark.parametrize(
    ("limit", "operations", "most"),
    [(_LIMIT_BYTES, 1_000_000, 8 << 20), (8 * _GRANULE_BYTES, 200_000, 1 << 20)],
    ids=["below the limit", "at the limit"],
)
def test_row_06_sixteen_threads_leave_nothing_and_are_never_charged_past_the_limit(
    null_host: Host, program: Path, tmp_path: Path, limit: int, operations: int, most: int
) -> None:
    """They allocate at the limit: small allocations alone, and fewer blocks than the threads could
    use."""
    region.create(tmp_path, [grant_file.Gpu(NULL_GPU, limit, 100, 0)])
    with subprocess.Popen(
        [program, "storm", "16", str(operations), str(most)],
        env=null_host.environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        while running.poll() is None:
            assert used(tmp_path) <= limit
            time.sleep(0.0005)  # leaves the processors to the threads
        assert running.stdout is not None
        before, after, made, refused = map(int, running.stdout.read().split())
    assert (running.returncode, before, after) == (0, limit, limit)
    assert made > operations // 20
    assert refused > 100 or limit == _LIMIT_BYTES
