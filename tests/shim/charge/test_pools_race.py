"""Processes that take stream-ordered memory at once: never over the limit, never all refused."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.shim.conftest import GIB, MIB, Grants, Host
from tests.shim.exact import POOLS
from tests.talking import Talk, talking

pytestmark = pytest.mark.sim

_LIMIT_BYTES = 256 * MIB
_ROUNDS = 40
_RACER = f"""{POOLS}
import sys
LIMIT, won = {_LIMIT_BYTES}, 0
keep(default, 2**64 - 1)
print("ready", flush=True)
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
print(won, flush=True)
"""


def _started(stack: ExitStack, program: str, host: Host, directory: Path, *arguments: str) -> Talk:
    command = [sys.executable, "-c", program, *arguments]
    return stack.enter_context(talking(command, host.environment(directory)))


def _raced(racers: Sequence[Talk]) -> list[str]:
    """Their answers, after all have begun at once."""
    for racer in racers:
        racer.send("")
    return [racer.answer() for racer in racers]


def test_processes_at_the_limit_are_never_over_it_and_never_all_refused(
    host: Host, grants: Grants
) -> None:
    directory = grants.make(_LIMIT_BYTES)
    with ExitStack() as stack:
        racers = [_started(stack, _RACER, host, directory) for _ in range(3)]
        assert sum(map(int, _raced(racers))) >= _ROUNDS


_SLOW = """
import threading
pool = new_pool(); keep(pool, 2**40)
pieces = [must(d.cuMemAllocFromPoolAsync(16 * MIB, pool, 0)) for _ in range(14)]
drop(*pieces[::2]); sync()
assert reserved(pool) == 224 * MIB
ended, most = threading.Event(), [0]
def watch():
    while not ended.is_set():
        most[0] = max(most[0], held() - begun)
def slowed(call, nanoseconds):
    assert control(op="latency", gpu=0, call=call, ns=nanoseconds)["ok"]
slowed("cuMemPoolGetAttribute", 300_000_000)
watcher = threading.Thread(target=watch); watcher.start()
code = d.cuMemAllocFromPoolAsync(112 * MIB, pool, 0)[0]
slowed("cuMemPoolGetAttribute", 0)
ended.set(); watcher.join()
assert code == OOM and most[0] == 224 * MIB, (code, most[0] / MIB)
same(224 * MIB)
served = must(d.cuMemAllocFromPoolAsync(16 * MIB, pool, 0))
same(224 * MIB)
"""


def test_what_a_pool_holds_in_pieces_is_no_reason_to_ask_for_more(
    host: Host, grants: Grants
) -> None:
    """Half of it is unused, no piece is large enough: the GPU frees nothing meanwhile."""
    host.python(POOLS + _SLOW, grants.make(_LIMIT_BYTES))


_STOPPED = 5
_TAKER = f"""{POOLS}
import sys
print("ready", flush=True)
sys.stdin.readline()
must(d.cuMemAllocAsync(20 * MIB, 0))
"""
_FILLER = f"""
import sys, time
LIMIT, STOPPED = int(sys.argv[1]), {_STOPPED}
def slowed(nanoseconds):
    assert control(op="latency", gpu=0, call="cuMemPoolGetAttribute", ns=nanoseconds)["ok"]
slowed(10**10)
print("ready", flush=True)
until = time.monotonic() + 60
while held() - begun < STOPPED * CHUNK:
    assert time.monotonic() < until, held() - begun
print("stop", flush=True)
sys.stdin.readline()
rest = LIMIT - STOPPED * CHUNK
kept = must(d.cuMemAlloc(rest // 2)), must(d.cuMemAlloc(rest // 2))
assert d.cuMemAlloc(2 * MIB)[0] == OOM and held() - begun == LIMIT
slowed(0)
print("kill", flush=True)
sys.stdin.readline()
must(d.cuMemAlloc(STOPPED * CHUNK))
assert charged() == LIMIT and held() - begun == LIMIT
print("done", flush=True)
"""


@pytest.mark.parametrize("limit_bytes", [512 * MIB, 3 * GIB], ids=["reserved", "growing"])
def test_processes_that_are_stopped_in_a_call_leave_the_rest_and_no_more(
    host: Host, grants: Grants, limit_bytes: int
) -> None:
    """Pools grew for each of them: no other process gets that capacity, reserved or not."""
    directory = grants.make(limit_bytes)
    with ExitStack() as stack:
        takers = [_started(stack, _TAKER, host, directory) for _ in range(_STOPPED)]
        filler = _started(stack, POOLS + _FILLER, host, directory, str(limit_bytes))
        for taker in takers:
            taker.send("")
        assert filler.answer() == "stop"
        for taker in takers:
            os.kill(taker.pid, signal.SIGSTOP)
        assert filler.ask("") == "kill"
        for taker in takers:
            taker.kill()
        assert filler.ask("") == "done"
