"""Processes allocate stream-ordered memory at once. The limit holds, and not all are refused."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack

import pytest

from tests.shim.conftest import GIB, MIB, Grants, Host
from tests.shim.exact import POOLS, SLOW

pytestmark = pytest.mark.sim

_LIMIT_BYTES = 256 * MIB
_FAR_LIMIT_BYTES = 3 * GIB
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


_FLOATING = f"""{POOLS}{SLOW}
import random
LIMIT = {_FAR_LIMIT_BYTES}
keep(default, 2**64 - 1)
def overcharged():
    "No memory is in use without a charge, and at most the float is charged without use."
    over = charged() - (held() - begun)
    assert 0 <= over <= 2 * CHUNK, over
    return over
def pairs(count, most=MIB):
    for _ in range(count):
        drop(must(d.cuMemAllocAsync(random.randint(1, most), 0)))
def float():
    "Let the pool get the float, by calls that are each charged exactly."
    pairs(70)
    sync()
    assert overcharged() == 2 * CHUNK
"""


def test_the_float_covers_requests_shows_in_no_figure_and_yields_at_the_limit(
    host: Host, grants: Grants
) -> None:
    host.python(
        f"""{_FLOATING}
must(d.cuMemAllocAsync(MIB, 0))
float()
kept = []
for _ in range(200):
    kept.append(must(d.cuMemAllocAsync(random.choice((1, MIB, 5 * MIB, 20 * MIB)), 0)))
    overcharged()
    if len(kept) > 20:
        drop(kept.pop(random.randrange(len(kept))))
    if random.random() < 0.2:
        assert must(d.cuMemGetInfo())[0] == LIMIT - (held() - begun)
        assert overcharged() == 2 * CHUNK
must(d.cuMemPoolTrimTo(default, 0))
assert overcharged() == 2 * CHUNK
must(d.cuMemAlloc(LIMIT - (held() - begun)))
assert charged() == held() - begun == LIMIT
assert d.cuMemAlloc(1)[0] == OOM
""",
        grants.make(_FAR_LIMIT_BYTES),
    )


def test_a_reading_does_not_include_requests_in_progress(host: Host, grants: Grants) -> None:
    """Threads whose requests together exceed what the float covers reserve instead."""
    host.python(
        f"""{_FLOATING}
must(d.cuMemAllocAsync(MIB, 0))
float()
with slow("cuMemAllocAsync", 300):
    threads = [beside(lambda: must(d.cuMemAllocAsync(14 * MIB, 0))) for _ in range(8)]
    for thread in threads:
        thread.join()
overcharged()
""",
        grants.make(_FAR_LIMIT_BYTES),
    )


def test_the_float_moves_to_the_pool_in_use_and_ends_with_it(host: Host, grants: Grants) -> None:
    host.python(
        f"""{_FLOATING}
must(d.cuMemAllocAsync(MIB, 0))
float()
pool = new_pool()
keep(pool, 2**64 - 1)
for _ in range(150):
    drop(must(d.cuMemAllocFromPoolAsync(MIB, pool, 0)))
    overcharged()
sync()
must(d.cuMemPoolTrimTo(default, 0))
assert overcharged() == 2 * CHUNK
must(d.cuMemPoolDestroy(pool))
sync()
assert overcharged() == 0
pairs(70)
sync()
assert overcharged() == 2 * CHUNK
must(d.cuDevicePrimaryCtxReset(0))
assert charged() == 0
""",
        grants.make(_FAR_LIMIT_BYTES),
    )


def test_threads_leave_no_charge_when_a_refund_overtakes_its_charge(
    host: Host, grants: Grants
) -> None:
    """Each synchronization empties the pool, so the threads charge and refund the same growth."""
    host.python(
        f"""{POOLS}{SLOW}
def work():
    for n in range(400):
        drop(must(d.cuMemAllocAsync(10 * MIB, 0)))
        if n % 3 == 0:
            sync()
for thread in [beside(work) for _ in range(4)]:
    thread.join()
after(sync(), 0)
""",
        grants.make(_FAR_LIMIT_BYTES),
    )


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


def test_processes_that_are_stopped_in_a_call_leave_the_rest_and_no_more(
    host: Host, grants: Grants
) -> None:
    """The pool of each stopped process has grown. No other process gets that memory."""
    directory = grants.make(2 * _LIMIT_BYTES)
    with ExitStack() as stack:
        takers = [stack.enter_context(host.serving(POOLS, directory)) for _ in range(_STOPPED)]
        filler = stack.enter_context(host.serving(_FILLER, directory))
        for taker in takers:
            taker.send("must(d.cuMemAllocAsync(20 * MIB, 0))")
        filler.do("wait_for_takers()")
        for taker in takers:
            os.kill(taker.pid, signal.SIGSTOP)
        filler.do(f"fill({2 * _LIMIT_BYTES})")
        for taker in takers:
            taker.kill()
        filler.do(f"after(d.cuMemAlloc({_STOPPED} * CHUNK), {2 * _LIMIT_BYTES})")


def test_killed_processes_return_their_floats(host: Host, grants: Grants) -> None:
    """No process gets the float of another that is stopped, and each gets it after the exit."""
    directory = grants.make(_FAR_LIMIT_BYTES)
    with ExitStack() as stack:
        takers = [stack.enter_context(host.serving(_FLOATING, directory)) for _ in range(_STOPPED)]
        filler = stack.enter_context(host.serving(_FLOATING, directory))
        for taker in takers:
            taker.do("must(d.cuMemAllocAsync(MIB, 0)); pairs(70); sync()")
            taker.do("pairs(40); must(d.cuMemAllocAsync(9 * MIB, 0))")
            os.kill(taker.pid, signal.SIGSTOP)
        rest = f"LIMIT - {_STOPPED} * 3 * CHUNK"
        filler.do(f"must(d.cuMemAlloc({rest}))")
        filler.do("assert d.cuMemAlloc(2 * MIB)[0] == OOM and held() - begun <= LIMIT")
        for taker in takers:
            taker.kill()
        filler.do(f"after(d.cuMemAlloc(LIMIT - ({rest})), LIMIT)")
