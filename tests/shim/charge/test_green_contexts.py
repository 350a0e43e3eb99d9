"""Green contexts: other handles of the primary context, which keeps what is allocated in them."""

from __future__ import annotations

import pytest

from tests.shim.conftest import GIB, MIB, Grants, Host
from tests.shim.exact import EXACT

pytestmark = pytest.mark.sim

_BEGIN = (
    EXACT
    + """
import ctypes
library = ctypes.CDLL("libcuda.so.1")
CONTEXT = 300 * MIB
resource, described = ctypes.create_string_buffer(256), ctypes.c_void_p()
assert library.cuDeviceGetDevResource(0, resource, 1) == 0
assert library.cuDevResourceGenerateDesc(ctypes.byref(described), resource, 1) == 0
def create():
    green = ctypes.c_void_p()
    code = library.cuGreenCtxCreate(ctypes.byref(green), described, 0, 1)
    return code or green
def enter(green):
    context = ctypes.c_void_p()
    assert library.cuCtxFromGreenCtx(ctypes.byref(context), green) == 0
    assert library.cuCtxSetCurrent(context) == 0
def destroy(green):
    assert library.cuGreenCtxDestroy(green) == 0
def exact(bytes):
    assert (held(), charged()) == (bytes, bytes), (held() / MIB, charged() / MIB, bytes / MIB)
"""
)


_PROGRAMS = {
    "what is allocated in a green context outlives it": """
primary = must(d.cuCtxGetCurrent())
green = create()
exact(CONTEXT)
enter(green)
large = must(d.cuMemAlloc(64 * MIB))
exact(CONTEXT + 64 * MIB)
destroy(green)
exact(CONTEXT + 64 * MIB)
must(d.cuCtxSetCurrent(primary))
must(d.cuMemFree(large))
exact(CONTEXT)
""",
    "a green context alone holds the primary and ends it": """
must(d.cuDevicePrimaryCtxRelease(0))
exact(0)
for _ in range(3):
    green, other = create(), create()
    exact(CONTEXT)
    enter(green)
    must(d.cuMemAlloc(64 * MIB))
    destroy(other)
    exact(CONTEXT + 64 * MIB)
    destroy(green)
    exact(0)
""",
    "a green context that the driver refuses leaves nothing": """
must(d.cuDevicePrimaryCtxRelease(0))
assert library.cuGreenCtxCreate(ctypes.byref(ctypes.c_void_p()), described, 0, 16) == 1
exact(0)
use(0)
green = create()
assert control(op="fail", gpu=0, call="cuGreenCtxDestroy", code=999, count=1)["ok"]
enter(green)
address = must(d.cuMemAlloc(64 * MIB))
assert library.cuGreenCtxDestroy(green) == 999
exact(CONTEXT + 64 * MIB)
must(d.cuMemFree(address))
exact(CONTEXT)
destroy(green)
exact(CONTEXT)
""",
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_a_program_is_charged_its_green_contexts(gpu_host: Host, grants: Grants, name: str) -> None:
    """They count as the primary context that they are handles of."""
    gpu_host.python(_BEGIN + _PROGRAMS[name], grants.make(GIB))


def test_a_green_context_that_does_not_fit_is_refused_and_the_drivers_refusals_are_its_own(
    gpu_host: Host, grants: Grants
) -> None:
    gpu_host.python(
        _BEGIN.replace("use(0)\n", "")
        + """
assert create() == 2
exact(0)
assert library.cuGreenCtxCreate(None, described, 0, 1) == 1
assert library.cuGreenCtxCreate(ctypes.byref(described), None, 0, 1) == 1
assert library.cuGreenCtxDestroy(None) == library.cuGreenCtxDestroy(described) == 201
exact(0)
""",
        grants.make(200 * MIB),
    )
