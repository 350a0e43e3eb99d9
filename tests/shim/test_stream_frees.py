"""Memory of no pool that is freed in stream order: charged until the card has it back.

`same` compares the daemon's figure of the card with the region's after each step. The kernel that a
free waits behind runs for an hour, or for as long as no wait of the library's lasts.
"""

from __future__ import annotations

import pytest

from tests.shim.conftest import GIB, Grants, Host
from tests.shim.exact import POOLS

pytestmark = pytest.mark.sim

_SLOW = (
    POOLS
    + """
PTX = b".version 8.0\\n.target sm_80\\n.address_size 64\\n" + b"".join(
    b"// simgpu: duration_ns=%d\\n.visible .entry %s() { ret; }\\n" % (ns, name)
    for ns, name in ((3600 * 10**9, b"hour"), (3 * 10**9, b"slow"), (200 * 10**6, b"brief"),
                     (1, b"load")))
module = must(d.cuModuleLoadData(PTX))
stream = must(d.cuStreamCreate(1))
HALF, QUARTER = GIB // 2, GIB // 4
NOT_READY = d.CUresult.CUDA_ERROR_NOT_READY
def busy(name, stream=stream, module=module):
    kernel = must(d.cuModuleGetFunction(module, name))
    must(d.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0))
busy(b"load"); must(d.cuCtxSynchronize())
begun, code = held(), charged()
def seen():
    return held() - begun, charged() - code
def same(amount):
    assert seen() == (amount, amount), (seen(), amount)
ROOM = must(d.cuMemGetInfo())[0]
def free_behind(name, amount=ROOM):
    address = must(d.cuMemAlloc(amount))
    busy(name)
    must(d.cuMemFreeAsync(address, stream))
    assert d.cuStreamQuery(stream)[0] == NOT_READY, "nobody was made to wait"
    return address
"""
)


def _run(host: Host, grants: Grants, program: str) -> None:
    host.python(_SLOW + program, grants.make(GIB))


def test_what_waits_for_a_stream_is_given_to_nobody(host: Host, grants: Grants) -> None:
    _run(
        host,
        grants,
        """
address = free_behind(b"slow")
same(ROOM)
assert d.cuMemAlloc(1)[0] == OOM
assert d.cuMemAllocAsync(1, 0)[0] == OOM
assert d.cuMemFree(address)[0] == d.CUresult.CUDA_ERROR_INVALID_VALUE
assert must(d.cuMemGetInfo())[0] == 0
same(ROOM)
must(d.cuStreamSynchronize(stream))
same(0)
must(d.cuMemAlloc(ROOM))
same(ROOM)
""",
    )


@pytest.mark.parametrize(
    "call", ["cuMemAlloc(ROOM)", "cuMemAllocAsync(ROOM, 0)", "cuMemAllocManaged(ROOM, 1)"]
)
def test_a_short_wait_is_waited_for(host: Host, grants: Grants, call: str) -> None:
    """Nobody has synchronised: what the stream has freed by then serves."""
    _run(
        host,
        grants,
        f"""
free_behind(b"brief")
for _ in range(100):
    code, *_ = d.{call}
    if code == OK:
        break
    assert code == OOM, code
assert code == OK
same(ROOM)
""",
    )


@pytest.mark.parametrize("kind", ["managed", "pitched", "small", "of the thread's own stream"])
def test_all_that_can_be_freed_so(host: Host, grants: Grants, kind: str) -> None:
    _run(
        host,
        grants,
        f"""
import ctypes
kind, cuda = {kind!r}, ctypes.CDLL("libcuda.so.1")
own = kind.startswith("of")
if kind == "managed":
    address = must(d.cuMemAllocManaged(HALF, 1))
elif kind == "pitched":
    address, _ = must(d.cuMemAllocPitch(MIB, 512, 4))
elif kind == "small":
    address = must(d.cuMemAlloc(1000))
else:
    address = must(d.cuMemAlloc(HALF))
amount = seen()[1]
assert amount > 0
same(amount)
busy(b"slow", d.CUstream(2) if own else stream)
free = cuda.cuMemFreeAsync_ptsz if own else cuda.cuMemFreeAsync
assert free(ctypes.c_uint64(int(address)), None if own else ctypes.c_void_p(int(stream))) == 0
same(amount)
must(d.cuMemGetInfo())
same(amount)
must(d.cuCtxSynchronize())
same(0)
""",
    )


def test_many_wait_and_more_than_can(host: Host, grants: Grants) -> None:
    """Beyond what can be noted the charge goes with its address or its context."""
    _run(
        host,
        grants,
        """
other = must(d.cuCtxCreate(None, 0, 0))
mine = must(d.cuStreamCreate(1))
far = must(d.cuModuleLoadData(PTX))
busy(b"hour", mine, far)
addresses = [must(d.cuMemAlloc(200 * 1024)) for _ in range(4200)]
full = seen()[1]
for address in addresses:
    must(d.cuMemFreeAsync(address, mine))
same(full)
must(d.cuCtxDestroy(other))
must(d.cuCtxSetCurrent(must(d.cuDevicePrimaryCtxRetain(0))))
same(0)
must(d.cuMemAlloc(ROOM))
same(ROOM)
""",
    )


def test_a_context_that_ends_takes_what_waits_along(host: Host, grants: Grants) -> None:
    """Its own; what waits in it of another context stays charged, as nobody tells of it."""
    _run(
        host,
        grants,
        """
kept = must(d.cuMemAlloc(QUARTER))
other = must(d.cuCtxCreate(None, 0, 0))
far, mine = must(d.cuModuleLoadData(PTX)), must(d.cuStreamCreate(1))
busy(b"hour", mine, far)
taken = seen()[1]
own = must(d.cuMemAlloc(QUARTER))
for address in (own, kept):
    must(d.cuMemFreeAsync(address, mine))
same(taken + QUARTER)
must(d.cuCtxDestroy(other))
must(d.cuCtxSetCurrent(must(d.cuDevicePrimaryCtxRetain(0))))
must(d.cuCtxSynchronize())
assert seen()[1] == QUARTER >= seen()[0]
must(d.cuDevicePrimaryCtxReset(0))
must(d.cuCtxSetCurrent(must(d.cuDevicePrimaryCtxRetain(0))))
assert charged() == 0
""",
    )


def test_a_fork_child_refunds_nothing_of_it(host: Host, grants: Grants) -> None:
    _run(
        host,
        grants,
        """
free_behind(b"slow")
child = os.fork()
if child == 0:
    d.cuMemGetInfo(); d.cuCtxSynchronize(); d.cuMemAlloc(1)
    same(ROOM)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
same(ROOM)
must(d.cuCtxSynchronize())
same(0)
""",
    )


def test_without_an_event_the_charge_stays(host: Host, grants: Grants) -> None:
    """Until the address is given again, or the context ends."""
    _run(
        host,
        grants,
        """
def fail(call):
    assert control(op="fail", card=0, call=call, code=2, count=1).get("ok"), call
for call in ("cuEventCreate", "cuEventRecord"):
    fail(call)
    address = free_behind(b"brief", QUARTER)
    must(d.cuStreamSynchronize(stream))
    assert seen() == (0, QUARTER)
    while int(again := must(d.cuMemAlloc(QUARTER))) != int(address):
        assert seen() == (QUARTER, 2 * QUARTER)
        must(d.cuMemFree(again))
    same(QUARTER)
    must(d.cuMemFree(again))
    same(0)
""",
    )


def test_a_capture_elsewhere_is_not_spoilt(host: Host, grants: Grants) -> None:
    """Nor is what frees in a capture anything but the driver's to refuse."""
    _run(
        host,
        grants,
        """
free_behind(b"brief", HALF)
plain = must(d.cuMemAlloc(QUARTER))
mine = must(d.cuStreamCreate(1))
must(d.cuStreamBeginCapture(mine, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
assert d.cuMemFreeAsync(plain, mine)[0] == d.CUresult.CUDA_ERROR_INVALID_VALUE
must(d.cuMemGetInfo())
must(d.cuStreamEndCapture(mine))
must(d.cuCtxSynchronize())
same(QUARTER)
must(d.cuMemFree(plain))
same(0)
""",
    )
