"""Actions of another thread on a graph or an address during a slow driver call on it."""

from __future__ import annotations

import pytest

from tests.shim.conftest import GIB, Grants, Host
from tests.shim.exact import CODE, GRAPHS, SLOW

pytestmark = pytest.mark.sim

_BEGIN = (
    GRAPHS
    + CODE
    + SLOW
    + """
def until(reached, pause=0.01):
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(pause)
def sleeps(thread):
    with open(f"/proc/self/task/{thread}/wchan") as file:
        return "nanosleep" in file.read()
"""
)


def test_a_free_that_is_refused_when_its_address_was_given_again(
    gpu_host: Host, grants: Grants
) -> None:
    """Another thread freed it first: the charge is the address's new allocation's alone."""
    gpu_host.python(
        _BEGIN
        + """
address = must(d.cuMemAlloc(64 * MIB))
with slow("cuMemFree_v2", 6000):
    assert control(op="fail", gpu=0, call="cuMemFree_v2", code=1, count=1)["ok"]
    thread = beside(lambda: library.cuMemFree_v2(ctypes.c_uint64(int(address))))
    until(lambda: sleeps(thread.native_id))
    again = address
    def allocate_again():
        global again
        must(d.cuMemFreeAsync(again, 0))
        must(d.cuStreamSynchronize(0))
        again = must(d.cuMemAlloc(64 * MIB))
        return int(again) == int(address)
    until(allocate_again, pause=0)
    thread.join()
exact(CONTEXT + 64 * MIB)
must(d.cuMemFree(again))
exact(CONTEXT)
""",
        grants.make(2 * GIB),
    )
