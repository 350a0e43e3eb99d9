"""Memory that the GPU frees when its context ends is refunded. The tests end contexts in each way,
make calls that end none, and use a context in other threads meanwhile."""

from __future__ import annotations

import pytest

from tests.shim.conftest import GIB, MIB, Grants, Host, Limited
from tests.shim.exact import CODE, SLOW, WATCH

pytestmark = pytest.mark.sim

BEGIN = f"""{CODE}{SLOW}
BLOCK = 2 * MIB
def create():
    context = must(d.cuCtxCreate(None, 0, 0))
    must(d.cuCtxPopCurrent())
    return context
def handle(context):
    return ctypes.c_void_p(int(context))
def inside(context, size):
    must(d.cuCtxPushCurrent(context))
    address = must(d.cuMemAlloc(size))
    must(d.cuCtxPopCurrent())
    return address
def until(reached, pause=0.01):
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(pause)
def sleeps(thread):
    with open(f"/proc/self/task/{{thread.native_id}}/wchan") as file:
        return "nanosleep" in file.read()
@contextmanager
def during(call, *arguments, code=0):
    "The block is executed while the driver waits to do the call, in a thread of its own."
    current, answers = handle(must(d.cuCtxGetCurrent())), []
    def do():
        assert library.cuCtxSetCurrent(current) == 0
        answers.append(library[call](*arguments))
    with slow(call, 2000):
        thread = threading.Thread(target=do)
        thread.start()
        until(lambda: sleeps(thread))
        yield
        thread.join()
    assert answers == [code], answers
"""

_PROGRAMS = {
    "a context takes what it holds with it": """
for call in ("cuCtxDestroy", "cuCtxDestroy_v2", "cuCtxDetach"):
    mine, context = must(d.cuMemAlloc(64 * MIB)), create()
    for _ in range(3):
        inside(context, 32 * MIB)
    exact(2 * CONTEXT + 160 * MIB)
    assert library[call](handle(context)) == 0
    exact(CONTEXT + 64 * MIB)
    after(d.cuMemFree(mine), CONTEXT)
""",
    "a primary context comes again under its handle with nothing": """
for call in 3 * ["Release"] + 3 * ["Release_v2"] + 3 * ["Reset"] + 3 * ["Reset_v2"]:
    must(d.cuMemAlloc(512 * MIB))
    after(d.cuMemAlloc(64 * MIB), CONTEXT + 576 * MIB)
    assert library["cuDevicePrimaryCtx" + call](0) == 0
    exact(0)
    after(use(0), CONTEXT)
""",
    "a context that a call does not end stays one for all threads": """
# These calls end no context. So an allocation during such a call shares a block as usual.
def refuse(call):
    fail(call, 999)
def attach(call):
    must(d.cuCtxPushCurrent(context))
    must(d.cuCtxAttach(0))
    must(d.cuCtxPopCurrent())
for call, code, prepare in (
    ("cuCtxDestroy", 999, refuse), ("cuCtxDestroy_v2", 999, refuse), ("cuCtxDetach", 0, attach)
):
    context = create()
    made = charged()
    kept = inside(context, 1024)
    exact(made + BLOCK)
    for _ in range(2):
        prepare(call)
        with during(call, handle(context), code=code):
            other = inside(context, 1024)
            exact(made + BLOCK)
        exact(made + BLOCK)
        after(d.cuMemFree(other), made + BLOCK)
    inside(context, 64 * MIB)
    exact(made + BLOCK + 64 * MIB)
    after(d.cuMemFree(kept), made + 64 * MIB)
    after(d.cuCtxDestroy(context), CONTEXT)
""",
    "a context that the driver will not end keeps": """
address = must(d.cuMemAlloc(512 * MIB))
primary = must(d.cuCtxGetCurrent())
for name in ("cuCtxDestroy", "cuCtxDestroy_v2", "cuCtxDetach"):
    for wrong in (handle(primary), None, ctypes.c_void_p(0x1234)):
        assert library[name](wrong) == 201, "an invalid context"
        exact(CONTEXT + 512 * MIB)
assert library.cuDevicePrimaryCtxReset_v2(7) == library.cuDevicePrimaryCtxRelease_v2(7) == 101
exact(CONTEXT + 512 * MIB)
after(d.cuDevicePrimaryCtxReset(0), 0)
""",
    "a release that is not the last leaves blocks to the holders": """
# The release does not end the context, so an allocation during this driver call may share a block.
use(0)
kept = after(d.cuMemAlloc(1024), CONTEXT + BLOCK)
with during("cuDevicePrimaryCtxRelease_v2", 0):
    must(d.cuMemFree(must(d.cuMemAlloc(1024))))
exact(CONTEXT + BLOCK)
after(d.cuMemFree(kept), CONTEXT)
must(d.cuMemAlloc(64 * MIB))
after(d.cuDevicePrimaryCtxRelease(0), 0)
""",
    "a context released while another thread retains it is charged": """
with during("cuDevicePrimaryCtxRetain", ctypes.byref(ctypes.c_void_p()), 0):
    must(d.cuDevicePrimaryCtxRelease(0))
exact(CONTEXT)
""",
    "a free that comes too late for its context leaves no charge": """
# The context ends during the free and frees the memory, so the driver refuses the free.
context = create()
address = ctypes.c_uint64(int(inside(context, 64 * MIB)))
with during("cuMemFree_v2", address, code=1):
    must(d.cuCtxDestroy(context))
exact(CONTEXT)
""",
    "memory allocated while a context is destroyed is refunded": """
context = create()
inside(context, 32 * MIB)
with during("cuCtxDestroy_v2", handle(context)):
    inside(context, 1024)
    inside(context, 16 * MIB)
exact(CONTEXT)
""",
    "a free that is refused when its address was given again": """
# Another thread has freed the memory and allocated at its address. Only the latter is charged.
address = again = must(d.cuMemAlloc(64 * MIB))
def allocate_again():
    global again
    must(d.cuMemFreeAsync(again, 0))
    must(d.cuStreamSynchronize(0))
    again = must(d.cuMemAlloc(64 * MIB))
    return int(again) == int(address)
with slow("cuMemFree_v2", 6000):
    fail("cuMemFree_v2", 1)
    thread = beside(lambda: library.cuMemFree_v2(ctypes.c_uint64(int(address))))
    until(lambda: sleeps(thread))
    until(allocate_again, pause=0)
    thread.join()
exact(CONTEXT + 64 * MIB)
after(d.cuMemFree(again), CONTEXT)
""",
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_what_ends_with_a_context_is_refunded(gpu_limited: Limited, name: str) -> None:
    """Memory that outlives its context stays charged."""
    gpu_limited(2 * GIB)(_PROGRAMS[name])


# The program opens the driver by dlopen, because a driver linked to a program cannot be closed.
_CLOSES = f"""{WATCH}
import _ctypes, ctypes
MIB = 2**20
def same():
    assert held() == charged(), (held(), charged())
    return charged()
def opened():
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuInit(0) == 0
    return driver
def retain(driver):
    code = driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    return code or driver.cuCtxSetCurrent(context)
context, address = ctypes.c_void_p(), ctypes.c_uint64()
driver = opened()
assert retain(driver) == 0
assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(64 * MIB)) == 0
assert same() == 364 * MIB
for _ in range(3):
    _ctypes.dlclose(driver._handle)
    assert same() == 364 * MIB
    driver = opened()
    assert same() == 364 * MIB
fail("cuDevicePrimaryCtxRetain", 999)
assert retain(driver) == 999
assert retain(driver) == 0
assert same() == 364 * MIB
assert driver.cuMemFree_v2(address) == 0
assert same() == 300 * MIB
for left in (300, 0):
    assert driver.cuDevicePrimaryCtxRelease_v2(0) == 0
    assert same() == left * MIB
"""


def test_what_a_closed_driver_left_on_the_gpu_stays_charged(gpu_host: Host, grants: Grants) -> None:
    """Under a limit, the library keeps the driver loaded even if the program closes it."""
    gpu_host.python(_CLOSES, grants.make(500 * MIB))
