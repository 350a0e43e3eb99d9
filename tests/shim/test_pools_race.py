"""Processes that take stream-ordered memory at once: never over the limit, never all refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.shim.conftest import MIB, Grants, Host
from tests.shim.exact import POOLS

pytestmark = pytest.mark.sim

_LIMIT_BYTES = 256 * MIB
_ROUNDS = 40
_RACER = (
    POOLS
    + f"""
import sys
LIMIT, won = {_LIMIT_BYTES}, 0
keep(default, 2**64 - 1)
sys.stdout.write("ready\\n"); sys.stdout.flush()
sys.stdin.readline()
for round in range({_ROUNDS}):
    size = (48 * MIB, 100 * MIB, 192 * MIB)[round % 3]
    code, address = d.cuMemAllocAsync(size, 0)
    assert code in (OK, OOM), code
    assert charged() <= LIMIT, charged()
    if code == OK:
        won += 1
        drop(address)
    sync()
    must(d.cuMemPoolTrimTo(default, 0))
assert reserved(default) == 0
print(won)
"""
)


def test_processes_at_the_limit_are_never_over_it_and_never_all_refused(
    host: Host, grants: Grants
) -> None:
    directory = grants.make(_LIMIT_BYTES)
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", _RACER],
            env=host.environment(directory),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(3)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    done = [racer.communicate(timeout=120) for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 3, done
    assert sum(int(out) for out, _ in done) >= _ROUNDS
