"""Processes allocate stream-ordered memory at once. The limit holds, and not all are refused."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack

import pytest

from tests.shim.conftest import GIB, MIB, Grants, Host
from tests.shim.exact import POOLS

pytestmark = pytest.mark.sim

_LIMIT_BYTES = 256 * MIB
_ROUNDS = 40
_STOPPED = 5
_RACER = f"""{POOLS}
def race():
    won = 0
    keep(default, 2**64 - 1)
    for round in range({_ROUNDS}):
        size = (48 * MIB, 100 * MIB, 192 * MIB)[round % 3]
        code, address = d.cuMemAllocAsync(size, 0)
        assert code in (OK, OOM), code
        assert charged() <= {_LIMIT_BYTES}, charged()
        if code == OK:
            won += 1
            drop(address)
        sync()
        must(d.cuMemPoolTrimTo(default, 0))
    assert reserved(default) == 0
    print(won, flush=True)
"""


def test_processes_at_the_limit_are_never_over_it_and_never_all_refused(
    host: Host, grants: Grants
) -> None:
    directory = grants.make(_LIMIT_BYTES)
    with ExitStack() as stack:
        racers = [stack.enter_context(host.serving(_RACER, directory)) for _ in range(3)]
        for racer in racers:
            racer.send("race()")
        assert sum(int(racer.answer()) for racer in racers) >= _ROUNDS


_FILLER = f"""{POOLS}
import time
def slowed(seconds):
    request = {{"op": "latency", "gpu": 0, "call": "cuMemPoolGetAttribute"}}
    assert control(**request, ns=seconds * 10**9)["ok"]
slowed(10)
def wait_for_takers():
    until = time.monotonic() + 60
    while held() - begun < {_STOPPED} * CHUNK:
        assert time.monotonic() < until, held() - begun
def fill(limit):
    must(d.cuMemAlloc(limit - {_STOPPED} * CHUNK))
    assert d.cuMemAlloc(2 * MIB)[0] == OOM and held() - begun == limit
    slowed(0)
"""


@pytest.mark.parametrize("limit_bytes", [512 * MIB, 3 * GIB], ids=["reserved", "growing"])
def test_processes_that_are_stopped_in_a_call_leave_the_rest_and_no_more(
    host: Host, grants: Grants, limit_bytes: int
) -> None:
    """The pool of each stopped process has grown. No other process gets that memory, even where the
    library had not reserved it."""
    directory = grants.make(limit_bytes)
    with ExitStack() as stack:
        takers = [stack.enter_context(host.serving(POOLS, directory)) for _ in range(_STOPPED)]
        filler = stack.enter_context(host.serving(_FILLER, directory))
        for taker in takers:
            taker.send("must(d.cuMemAllocAsync(20 * MIB, 0))")
        filler.do("wait_for_takers()")
        for taker in takers:
            os.kill(taker.pid, signal.SIGSTOP)
        filler.do(f"fill({limit_bytes})")
        for taker in takers:
            taker.kill()
        filler.do(f"after(d.cuMemAlloc({_STOPPED} * CHUNK), {limit_bytes})")
