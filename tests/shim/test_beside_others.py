"""What is measured while other threads of the container come by memory: no byte of theirs is in it.

The driver is slow at one call of each thread, so that the measurement begins and ends in the middle
of what the other does.
"""

from __future__ import annotations

import pytest

from contract import names, region_file
from tests.shim.conftest import GIB, Grants, Host
from tests.shim.exact import CODE, GRAPHS

pytestmark = pytest.mark.sim

F_OFD_GETLK = 36

_BEGIN = (
    GRAPHS
    + CODE
    + f"""
import fcntl, struct, threading, time
from contextlib import contextmanager
@contextmanager
def slow(**calls):
    for call, ms in calls.items():
        assert control(op="latency", card=0, call=call, ns=ms * 10**6)["ok"]
    try:
        yield
    finally:
        for call in calls:
            assert control(op="latency", card=0, call=call, ns=0)["ok"]
def until(reached):
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)
def turn_is_taken():
    with open(os.environ["GPUSLICE_DIR"] + "/{names.FILE_REGION}", "r+b") as file:
        wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, {region_file.LOCK_TURN}, 1, 0)
        seen = struct.unpack("hhqqi4x", fcntl.fcntl(file, {F_OFD_GETLK}, wanted))
    return seen[0] != fcntl.F_UNLCK
def beside(work):
    def run():
        use(0)
        work()
    thread = threading.Thread(target=run)
    thread.start()
    return thread
def allocate():
    assert library.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(64 * MIB)) == 0
"""
)


def test_a_graph_without_code_takes_none(card_host: Host, grants: Grants) -> None:
    card_host.python(
        _BEGIN
        + """
graph, executable = scratch(10 * MIB), ctypes.c_void_p()
with slow(cuMemAlloc_v2=300, cuGraphInstantiateWithFlags=900):
    thread = beside(allocate)
    until(lambda: charged() == CONTEXT + 64 * MIB)
    assert library.cuGraphInstantiateWithFlags(
        ctypes.byref(executable), ctypes.c_void_p(int(graph)), ctypes.c_ulonglong(0)) == 0
    thread.join()
exact(CONTEXT + 64 * MIB)
with slow(cuMemAlloc_v2=300, cuGraphLaunch=900):
    thread = beside(allocate)
    until(lambda: charged() == CONTEXT + 128 * MIB)
    assert library.cuGraphLaunch(executable, None) == 0
    thread.join()
exact(CONTEXT + 138 * MIB)
""",
        grants.make(2 * GIB),
    )


def test_a_graph_that_was_trimmed_while_it_was_launched_reserves_anew(
    card_host: Host, grants: Grants
) -> None:
    card_host.python(
        _BEGIN
        + """
with_code, _ = graph_of(entry(load(2)))
graph = scratch(64 * MIB, graph=with_code)
executable = instantiate(graph)
assert launch(executable) == OK
must(d.cuDeviceGraphMemTrim(0))
exact()
before = charged()
with slow(LAUNCH=600):
    thread = beside(lambda: library.cuGraphLaunch(ctypes.c_void_p(int(executable)), None))
    until(lambda: graph_bytes() == 64 * MIB)
    until(lambda: d.cuDeviceGraphMemTrim(0)[0] == OK and graph_bytes() == 0)
    thread.join()
must(d.cuCtxSynchronize())
must(d.cuMemAlloc(2048 * MIB - before - 32 * MIB))
exact()
assert launch(executable) == OOM
exact()
""",
        grants.make(2 * GIB),
    )


@pytest.mark.parametrize("ends_first", [False, True])
def test_a_context_beside_a_load_is_charged_what_it_took(
    card_host: Host, grants: Grants, ends_first: bool
) -> None:
    """As long as it is there, and no longer; the load is charged nothing of it."""
    card_host.python(
        _BEGIN
        + f"""
function = entry(load(20))
other = must(d.cuCtxCreate(None, 0, 0))
if not {ends_first}:
    must(d.cuCtxDestroy(other))
use(0)
begun = charged()
exact()
with slow(cuFuncLoad=900):
    thread = beside(lambda: library.cuFuncLoad(ctypes.c_void_p(int(function))))
    until(turn_is_taken)
    if {ends_first}:
        must(d.cuCtxDestroy(other))
    else:
        other = must(d.cuCtxCreate(None, 0, 0))
    exact()
    thread.join()
exact(begun + 20 * MIB + ({-1 if ends_first else 1}) * CONTEXT)
if not {ends_first}:
    must(d.cuCtxDestroy(other))
exact(CONTEXT + 20 * MIB)
""",
        grants.make(2 * GIB),
    )
