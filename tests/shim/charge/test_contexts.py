"""A context is charged the grant's figure before its creation, whatever other programs do. A green
context is another handle of the primary context, which keeps the green context's allocations."""

from __future__ import annotations

import pytest

from tests.shim.clients import CUDA, NO_CONTEXT
from tests.shim.conftest import CONTEXT_BYTES, GIB, MIB, Grants, Host, Limited, used
from tests.shim.exact import CODE
from tests.support import run

pytestmark = pytest.mark.sim

BEGIN = CODE.replace(CUDA, NO_CONTEXT)


def test_a_first_context_beside_a_neighbour_is_charged_its_size(
    gpu_host: Host, gpu_limited: Limited, grants: Grants
) -> None:
    theirs = grants.make(2 * GIB)
    with gpu_host.serving(CUDA + "address = must(d.cuMemAlloc(GIB))\n", theirs):
        gpu_limited(GIB)("""
compare, first = same, ctypes.c_void_p()
for call, arguments in (
    ("cuCtxCreate_v2", (0, 0)),
    ("cuCtxCreate_v4", (None, 0, 0)),
    ("cuDevicePrimaryCtxRetain", (0,)),
):
    assert library[call](ctypes.byref(first), *arguments) == library.cuCtxSetCurrent(first) == 0
    same(CONTEXT)
    assert must(d.cuMemGetInfo()) == (GIB - CONTEXT, GIB)
    must(d.cuMemAlloc(64 * MIB))
    second = after(d.cuCtxCreate(None, 0, 0), 2 * CONTEXT + 64 * MIB)
    after(d.cuCtxDestroy(second), CONTEXT + 64 * MIB)
    must(d.cuDevicePrimaryCtxReset(0) if "Primary" in call else d.cuCtxDestroy(first.value))
    same(0)
""")
        assert used(theirs) == CONTEXT_BYTES + GIB


def test_a_context_that_came_by_a_call_without_a_hook_is_charged_when_it_is_met(
    gpu_host: Host, gpu_limited: Limited
) -> None:
    """The next hook that finds the context charges it, even beyond the limit."""
    table = run("nm", "-D", gpu_host.driver_dir / "libcuda.so.1", check=True).stdout
    (offset,) = (row.split()[0] for row in table.splitlines() if row.endswith("PrimaryCtxRetain"))
    gpu_limited(CONTEXT_BYTES - MIB)(f"""
driver = next(line for line in open("/proc/self/maps") if "/libcuda.so" in line)
retain = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
context = ctypes.c_void_p()
assert retain(int(driver.split("-")[0], 16) + 0x{offset})(ctypes.byref(context), 0) == 0
assert (held(), charged()) == (CONTEXT, 0)
assert library.cuCtxSetCurrent(context) == 0
assert d.cuMemAlloc(2 * MIB)[0] == OOM
exact(CONTEXT)
""")


_GREEN = """
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
"""
_PROGRAMS = {
    "one beyond the limit is never created": """
for _ in range(2):
    refused(d.cuDevicePrimaryCtxRetain(0), 0)
    refused(d.cuCtxCreate(None, 0, 0), 0)
    assert tuple(d.cuDevicePrimaryCtxGetState(0))[2] == 0
""",
    "one at the limit is created": "after(d.cuDevicePrimaryCtxRetain(0), CONTEXT)",
    "the first one is charged an allowance for code": """
use(0)
assert charged() == CONTEXT + 64 * MIB
second = must(d.cuCtxCreate(None, 0, 0))
assert charged() == 2 * CONTEXT + 64 * MIB
must(d.cuCtxDestroy(second))
must(d.cuDevicePrimaryCtxRelease(0))
assert charged() == 0
must(d.cuCtxCreate(None, 0, 0))
assert charged() == CONTEXT + 64 * MIB, "it is the first again"
""",
    "what is allocated in a green one outlives it": f"""{_GREEN}
use(0)
primary = must(d.cuCtxGetCurrent())
green = create()
exact(CONTEXT)
enter(green)
large = must(d.cuMemAlloc(64 * MIB))
after(destroy(green), CONTEXT + 64 * MIB)
must(d.cuCtxSetCurrent(primary))
after(d.cuMemFree(large), CONTEXT)
""",
    "a green one alone holds the primary and ends it": f"""{_GREEN}
for _ in range(3):
    green, other = create(), create()
    exact(CONTEXT)
    enter(green)
    must(d.cuMemAlloc(64 * MIB))
    after(destroy(other), CONTEXT + 64 * MIB)
    after(destroy(green), 0)
""",
    "a green one that the driver refuses leaves nothing": f"""{_GREEN}
assert library.cuGreenCtxCreate(ctypes.byref(ctypes.c_void_p()), described, 0, 16) == 1
exact(0)
use(0)
green = create()
fail("cuGreenCtxDestroy", 999)
enter(green)
address = must(d.cuMemAlloc(64 * MIB))
assert library.cuGreenCtxDestroy(green) == 999
exact(CONTEXT + 64 * MIB)
after(d.cuMemFree(address), CONTEXT)
after(destroy(green), CONTEXT)
""",
    "a green one beyond the limit is refused as the driver refuses": f"""{_GREEN}
assert create() == 2
exact(0)
assert library.cuGreenCtxCreate(None, described, 0, 1) == 1
assert library.cuGreenCtxCreate(ctypes.byref(described), None, 0, 1) == 1
assert library.cuGreenCtxDestroy(None) == library.cuGreenCtxDestroy(described) == 201
exact(0)
""",
}
_GRANTS: dict[str, tuple[int, int]] = {
    "one beyond the limit is never created": (CONTEXT_BYTES - 1, 0),
    "one at the limit is created": (CONTEXT_BYTES, 0),
    "the first one is charged an allowance for code": (2 * GIB, 64 * MIB),
    "a green one beyond the limit is refused as the driver refuses": (200 * MIB, 0),
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_a_program_is_charged_its_contexts(gpu_limited: Limited, name: str) -> None:
    limit, code_bytes = _GRANTS.get(name, (GIB, 0))
    gpu_limited(limit, code_bytes=code_bytes)(_PROGRAMS[name])
