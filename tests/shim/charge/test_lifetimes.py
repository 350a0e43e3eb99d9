"""The duration of a charge: as long as the GPU holds its memory, whichever call ends it."""

from __future__ import annotations

import pytest

from tests.shim.conftest import GIB, MIB, Grants, Host
from tests.shim.exact import EXACT

pytestmark = pytest.mark.sim

# A program that opens the driver itself, as a plug-in would: only that can be closed again.
_OPENS = """
import _ctypes, ctypes, json, os, socket
from pathlib import Path
from shim import region
MIB = 2**20
def control(**request):
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.connect(os.environ["SIMGPU_DIR"] + "/control.sock")
        daemon.sendall(json.dumps(request).encode() + bytes([10]))
        return json.loads(daemon.makefile().readline())
def same():
    held = control(op="status")["gpus"][0]["used_bytes"]
    charged = region.status(Path(os.environ["GPUSLICE_DIR"]))[0].use.used_bytes
    assert held == charged, (held, charged)
    return held
def opened():
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuInit(0) == 0
    return driver
def retain(driver):
    code = driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    return code or driver.cuCtxSetCurrent(context)
def alloc(driver, size):
    return driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
context, address = ctypes.c_void_p(), ctypes.c_uint64()
"""

_AFTER_IT_CAME_AGAIN = {
    "released": "assert driver.cuDevicePrimaryCtxRelease_v2(0) == 0; same()",
    "refused": """
assert control(op="fail", gpu=0, call="cuDevicePrimaryCtxRetain", code=999, count=1)["ok"]
assert retain(driver) == 999
same()
assert retain(driver) == 0
same()
assert driver.cuDevicePrimaryCtxRelease_v2(0) == 0
same()
""",
}


@pytest.mark.parametrize("context_bytes", [300 * MIB])
@pytest.mark.parametrize("then", _AFTER_IT_CAME_AGAIN)
def test_what_a_closed_driver_left_on_the_gpu_stays_charged(
    gpu_host: Host, grants: Grants, then: str, context_bytes: int
) -> None:
    """It has a context when the program closes it and opens it again."""
    gpu_host.python(
        _OPENS
        + f"""
driver = opened()
assert retain(driver) == 0 and alloc(driver, 64 * MIB) == 0
assert same() == 364 * MIB
_ctypes.dlclose(driver._handle)
assert same() == 364 * MIB
driver = opened()
assert same() == 364 * MIB
{_AFTER_IT_CAME_AGAIN[then]}
""",
        grants.make(500 * MIB, context_bytes=context_bytes),
    )


def test_a_driver_that_a_limit_holds_for_is_not_unloaded(host: Host, grants: Grants) -> None:
    """However often it is closed, it is the same library, with the same charges."""
    host.python(
        _OPENS
        + """
driver = opened()
assert retain(driver) == 0 and alloc(driver, 64 * MIB) == 0
held = same()
for _ in range(3):
    _ctypes.dlclose(driver._handle)
    driver = opened()
assert retain(driver) == 0
assert same() == held
assert driver.cuMemFree_v2(address) == 0
same()
""",
        grants.make(GIB),
    )


_SLOWLY = (
    EXACT
    + """
import ctypes, threading, time
library = ctypes.CDLL("libcuda.so.1")
class Slowly:
    "The driver's call in a thread of its own; others go on while it waits to begin."
    def __init__(self, name, argument, code=0):
        assert control(op="latency", gpu=0, call=name, ns=700_000_000)["ok"]
        if code:
            assert control(op="fail", gpu=0, call=name, code=code, count=1)["ok"]
        self.name, self.argument, self.code = name, argument, code
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        time.sleep(0.3)
    def run(self):
        self.answer = library[self.name](ctypes.c_void_p(int(self.argument)))
    def __enter__(self):
        return self
    def __exit__(self, *_):
        self.thread.join()
        assert control(op="latency", gpu=0, call=self.name, ns=0)["ok"]
        assert self.answer == self.code, self.answer
def inside(context, size):
    must(d.cuCtxPushCurrent(context))
    address = must(d.cuMemAlloc(size))
    must(d.cuCtxPopCurrent())
    return address
before = charged()
context = must(d.cuCtxCreate(None, 0, 0))
must(d.cuCtxPopCurrent())
made = charged()
BLOCK = 2 * MIB
"""
)

_NOT_ENDED = {
    "cuCtxDestroy": ("", 999),
    "cuCtxDestroy_v2": ("", 999),
    "cuCtxDetach": (
        "must(d.cuCtxPushCurrent(context)); must(d.cuCtxAttach(0)); must(d.cuCtxPopCurrent())",
        0,
    ),
}


@pytest.mark.parametrize("call", _NOT_ENDED)
def test_a_context_that_a_call_does_not_end_stays_one_for_all_threads(
    gpu_host: Host, grants: Grants, call: str
) -> None:
    """Threads that allocate during a driver call that ends nothing share blocks with the others."""
    attach, code = _NOT_ENDED[call]
    gpu_host.python(
        _SLOWLY
        + f"""
kept = inside(context, 1024)
same(made + BLOCK)
for _ in range(2):
    {attach or "pass"}
    with Slowly({call!r}, context, {code}):
        other = inside(context, 1024)
        same(made + BLOCK)
    same(made + BLOCK)
    must(d.cuMemFree(other))
    same(made + BLOCK)
inside(context, 64 * MIB)
same(made + BLOCK + 64 * MIB)
must(d.cuMemFree(kept))
same(made + 64 * MIB)
must(d.cuCtxDestroy(context))
same(before)
""",
        grants.make(2 * GIB),
    )


def test_memory_allocated_while_a_context_is_destroyed_is_refunded(
    gpu_host: Host, grants: Grants
) -> None:
    gpu_host.python(
        _SLOWLY
        + """
inside(context, 32 * MIB)
with Slowly("cuCtxDestroy_v2", context):
    inside(context, 1024)
    inside(context, 16 * MIB)
same(before)
""",
        grants.make(2 * GIB),
    )
