"""A program linked with -lcuda never exceeds the limit by races, kills, threads or forks.

The program uses the null driver. Its processes themselves count the memory that they hold.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from shim import region
from tests.shim.conftest import GIB, Host, null_grant, used
from tests.shim.drivers import SOURCES, build

pytestmark = pytest.mark.sim

_ROUNDS = 2000
_WHOLE_RACE = "GPUSLICE_WHOLE_RACE" in os.environ
"""Whether to run all rounds with more than two racers, which takes minutes instead of seconds."""
_GRANULE_BYTES = 2 << 20


@pytest.fixture(scope="module")
def program(build_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = ("-O2", f"-L{build_dir / 'lib' / 'null'}", "-l:libcuda.so.1")
    program = tmp_path_factory.mktemp("program") / "driver-program"
    return build(program, SOURCES / "driver_program.c", *flags)


@pytest.mark.parametrize("processes", [2, 4, 8, 16, 32, 64])
def test_row_18_of_processes_that_race_for_the_last_block_one_wins(
    null_host: Host, program: Path, tmp_path: Path, processes: int
) -> None:
    """The driver's latency differs between the racers, by up to a millisecond. Without the library,
    each racer gets the block."""
    rounds = _ROUNDS if _WHOLE_RACE else min(_ROUNDS, 4000 // processes)
    race, grant = (str(program), "race", str(processes)), null_grant(tmp_path)
    assert null_host.run([*race, str(rounds)], grant).stdout == f"0 {rounds} 0 {GIB}\n"
    if processes == 2:
        assert null_host.run([*race, "50"], grant, preload=False).stdout.startswith("0 0 50 ")


@pytest.mark.parametrize(
    "command", [["kill", "3000", "8"], ["fork", "300"]], ids=["three_thousand_kills", "forks"]
)
def test_one_attach_finds_everything_returned_after(
    null_host: Host, program: Path, tmp_path: Path, command: list[str]
) -> None:
    """Another thread allocates during the forks. A child lacks that thread, but must not wait for
    a lock that the thread held."""
    grant = null_grant(tmp_path)
    null_host.run([program, *command], grant)
    null_host.run([program, "threads", "1"], grant)
    assert used(grant) == _GRANULE_BYTES, "its own, and it has just ended"


def test_threads_that_start_cuda_at_once_share_one_slot(
    null_host: Host, program: Path, tmp_path: Path
) -> None:
    grant = null_grant(tmp_path)
    with subprocess.Popen(
        [program, "threads", "32"],
        env=null_host.environment(grant),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == f"{32 * _GRANULE_BYTES}\n"
        assert (used(grant), len(region.holders(grant))) == (32 * _GRANULE_BYTES, 1)
        running.communicate("\n")
    assert running.returncode == 0


@pytest.mark.parametrize(
    ("limit", "operations", "most"),
    [(GIB, 1_000_000, 8 << 20), (8 * _GRANULE_BYTES, 200_000, 1 << 20)],
    ids=["below the limit", "at the limit"],
)
def test_row_06_sixteen_threads_leave_nothing_and_are_never_charged_past_the_limit(
    null_host: Host, program: Path, tmp_path: Path, limit: int, operations: int, most: int
) -> None:
    """All allocations fit under the first limit. The second has fewer blocks than threads."""
    grant = null_grant(tmp_path, limit)
    with subprocess.Popen(
        [program, "storm", "16", str(operations), str(most)],
        env=null_host.environment(grant),
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        while running.poll() is None:
            assert used(grant) <= limit
            time.sleep(0.0005)  # let the threads run
        assert running.stdout is not None
        before, after, made, refused = map(int, running.stdout.read().split())
    assert (running.returncode, before, after) == (0, limit, limit)
    assert made > operations // 20
    assert refused > 100 or limit == GIB
