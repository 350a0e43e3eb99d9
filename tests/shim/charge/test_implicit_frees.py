"""Memory that ends with its context is refunded: each way to end one, and the ways that do not."""

from __future__ import annotations

import pytest

from tests.shim.clients import CUDA
from tests.shim.conftest import GIB, Grants, Host
from tests.shim.exact import EXACT, SLOW

pytestmark = pytest.mark.sim

# Every amount excludes the contexts' own memory: `held` is the program's part.
_BEGIN = (
    CUDA
    + """
import ctypes, os
from pathlib import Path
from shim import region
library = ctypes.CDLL("libcuda.so.1")
def used():
    return region.status(Path(os.environ["GPUSLICE_DIR"]))[0].use.used_bytes
def create():
    return must(d.cuCtxCreate(None, 0, 0))
def inside(context, size):
    must(d.cuCtxPushCurrent(context))
    address = must(d.cuMemAlloc(size))
    must(d.cuCtxPopCurrent())
    return address
def handle(context):
    return ctypes.c_void_p(int(context))
idle = used()
"""
)

_ENDS = {
    "cuCtxDestroy": "library.cuCtxDestroy(handle(context))",
    "cuCtxDestroy_v2": "library.cuCtxDestroy_v2(handle(context))",
    "cuCtxDetach": "library.cuCtxDetach(handle(context))",
}


@pytest.mark.parametrize("call", _ENDS)
def test_a_context_takes_what_it_holds_with_it(host: Host, grants: Grants, call: str) -> None:
    host.python(
        _BEGIN
        + f"""
mine = must(d.cuMemAlloc(64 * MIB))
before = used()
context = create()
for _ in range(3):
    inside(context, 32 * MIB)
assert used() >= before + 96 * MIB
assert {_ENDS[call]} == 0
assert used() == before, "the other context holds what it held"
must(d.cuMemFree(mine))
assert used() == idle
""",
        grants.make(2 * GIB),
    )


_PRIMARY_ENDS = {
    "cuDevicePrimaryCtxRelease": "library.cuDevicePrimaryCtxRelease(0)",
    "cuDevicePrimaryCtxRelease_v2": "library.cuDevicePrimaryCtxRelease_v2(0)",
    "cuDevicePrimaryCtxReset": "library.cuDevicePrimaryCtxReset(0)",
    "cuDevicePrimaryCtxReset_v2": "library.cuDevicePrimaryCtxReset_v2(0)",
}


@pytest.mark.parametrize("call", _PRIMARY_ENDS)
def test_a_primary_context_comes_again_under_its_handle_with_nothing(
    host: Host, grants: Grants, call: str
) -> None:
    host.python(
        _BEGIN
        + f"""
for _ in range(3):
    must(d.cuMemAlloc(512 * MIB))
    must(d.cuMemAlloc(64 * MIB))
    assert used() == idle + 576 * MIB
    assert {_PRIMARY_ENDS[call]} == 0
    assert used() == 0
    use(0)
    assert used() == idle
""",
        grants.make(2 * GIB),
    )


_PROGRAMS = {
    "a primary context retained twice and released once keeps": """
use(0)
address = must(d.cuMemAlloc(512 * MIB))
must(d.cuDevicePrimaryCtxRelease(0))
assert used() == idle + 512 * MIB
must(d.cuMemAlloc(64 * MIB))
must(d.cuMemFree(address))
assert used() == idle + 64 * MIB
must(d.cuDevicePrimaryCtxRelease(0))
assert used() == 0
""",
    "a context that the driver will not end keeps": """
address = must(d.cuMemAlloc(512 * MIB))
primary = must(d.cuCtxGetCurrent())
INVALID_CONTEXT = 201
for name in ("cuCtxDestroy", "cuCtxDestroy_v2", "cuCtxDetach"):
    assert library[name](handle(primary)) == INVALID_CONTEXT
    assert library[name](None) == INVALID_CONTEXT
    assert library[name](ctypes.c_void_p(0x1234)) == INVALID_CONTEXT
    assert used() == idle + 512 * MIB
assert library.cuDevicePrimaryCtxReset_v2(7) == library.cuDevicePrimaryCtxRelease_v2(7) == 101
assert used() == idle + 512 * MIB
must(d.cuDevicePrimaryCtxReset(0))
assert used() == 0, "and still takes with it what it held before"
""",
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_what_ends_with_a_context_is_refunded(host: Host, grants: Grants, name: str) -> None:
    """Nothing else is refunded."""
    host.python(_BEGIN + _PROGRAMS[name], grants.make(2 * GIB))


_SLOWLY = (
    EXACT
    + SLOW
    + """
def during(call, work):
    "While the driver waits to do the call, in a thread of its own."
    with slow(SLOW, 500):
        thread = threading.Thread(target=lambda: call(0)[0] == OK or os.abort())
        thread.start()
        time.sleep(0.25)
        work()
        thread.join()
"""
)


_SLOW_CALLS = {
    "a release that is not the last leaves blocks to the holders": """
# An allocation during the driver call belongs to the same generation of the context.
SLOW = "cuDevicePrimaryCtxRelease_v2"
begun = held() - charged()
before = charged()
use(0)
kept = must(d.cuMemAlloc(1024))
same(before + 2 * MIB)
during(d.cuDevicePrimaryCtxRelease, lambda: must(d.cuMemFree(must(d.cuMemAlloc(1024)))))
same(before + 2 * MIB)
must(d.cuMemFree(kept))
same(before)
""",
    "a context released while another thread retains it is charged": """
SLOW = "cuDevicePrimaryCtxRetain"
during(d.cuDevicePrimaryCtxRetain, lambda: must(d.cuDevicePrimaryCtxRelease(0)))
assert held() == charged(), (held() - charged(), "of the gpu are not charged")
assert charged() > 0
""",
    "a free that comes too late for its context leaves no charge": """
# The context took the memory before the driver reached the free, which it then refuses.
SLOW = "cuMemFree_v2"
before = charged()
context = must(d.cuCtxCreate(None, 0, 0))
address = must(d.cuMemAlloc(64 * MIB))
answers = []
free = lambda _: (answers.extend(d.cuMemFree(address)) or OK,)
during(free, lambda: must(d.cuCtxDestroy(context)))
assert answers[0] != OK
assert held() == charged() == before, (held() - begun, charged())
""",
}


@pytest.mark.parametrize("name", _SLOW_CALLS)
def test_a_slow_call_beside_another_thread(gpu_host: Host, grants: Grants, name: str) -> None:
    """The driver acts half a second after the call."""
    gpu_host.python(_SLOWLY + _SLOW_CALLS[name], grants.make(2 * GIB))
