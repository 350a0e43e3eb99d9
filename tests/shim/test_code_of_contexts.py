"""Code is charged to the context that it lies in, whichever is current when it comes or goes.

The simulated driver loads at one of several moments, and a test runs each of them.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.shim.conftest import GIB, MIB, Grants, Host
from tests.shim.exact import CODE

pytestmark = pytest.mark.sim

MOMENTS = ("function", "asked", "node", "instantiate", "launch")
CONTEXT_BYTES = 300 * MIB
WITHOUT_LOADING_CALLS = "simgpu-12020"

_TWO = (
    CODE
    + """
def both(on_0, on_1):
    exact(on_0 * MIB, 0)
    exact(on_1 * MIB, 1)
def context(ordinal):
    return must(d.cuDevicePrimaryCtxRetain(ordinal))
def current(handle):
    must(d.cuCtxSetCurrent(handle))
def new_context():
    "A second one on card 0, and current."
    made = ctypes.c_void_p()
    assert library.cuCtxCreate_v2(ctypes.byref(made), 0, 0) == 0
    return d.CUcontext(made.value)
def handle(of):
    return ctypes.c_void_p(int(of))
zero, one = context(0), context(1)
current(zero)
both(300, 300)
"""
)


def _at(moment: str) -> str:
    return f"import os; os.environ['SIMGPU_LOADS_AT'] = {moment!r}\n" + _TWO


def _make(grants: Grants, *limits: int) -> Path:
    return grants.make(*limits, context_bytes=CONTEXT_BYTES)


_TOUCHES = {
    "cuModuleGetFunction": "d.cuModuleGetFunction(module, b'entry')[0]",
    "cuModuleGetGlobal": "d.cuModuleGetGlobal(module, b'nothing')[0]",
    "cuFuncLoad": "d.cuFuncLoad(function())[0]",
    "cuFuncGetAttribute": "d.cuFuncGetAttribute(d.CUfunction_attribute(0), function())[0]",
    "cuLaunchKernel": "run(function())",
    "cuModuleEnumerateFunctions": (
        "d.cuFuncLoad(must(d.cuModuleEnumerateFunctions(1, module))[0])[0]"
    ),
    "cuGraphAddKernelNode": (
        "library.cuGraphAddKernelNode(ctypes.byref(ctypes.c_void_p()), handle(graph), None, "
        "ctypes.c_size_t(0), ctypes.c_void_p(kernel_params(function()).getPtr()))"
    ),
    "cuGraphAddKernelNode_v2": (
        "d.cuGraphAddKernelNode(graph, None, 0, kernel_params(function()))[0]"
    ),
    "cuGraphAddNode": "d.cuGraphAddNode(graph, None, None, 0, node_params(function()))[0]",
    "cuGraphExecKernelNodeSetParams": (
        "d.cuGraphExecKernelNodeSetParams(executable, node, kernel_params(function()))[0]"
    ),
}


@pytest.mark.parametrize("moment", ["function", "asked", "launch"])
@pytest.mark.parametrize("touch", _TOUCHES)
def test_code_of_another_card_is_charged_there(
    card_host: Host, grants: Grants, touch: str, moment: str
) -> None:
    """So is the limit: over it by one load at most, and what comes after is refused."""
    card_host.python(
        _at(moment)
        + f"""
here = entry(load(2))
graph, (node,) = graph_of(here)
executable = must(d.cuGraphInstantiate(graph, 0))
must(d.cuGraphLaunch(executable, 0))
both(302, 300)
for _ in range(6):
    current(one)
    answer, module = d.cuModuleLoadData(text(300))
    current(zero)
    if answer != OK:
        break
    def function():
        return entry(module)
    try:
        {_TOUCHES[touch]}
    except AssertionError:
        pass
    both(302, charged(1) // MIB)
assert charged(1) <= 1100 * MIB, charged(1) / MIB
assert d.cuMemAlloc(MIB)[0] == OK
current(one)
assert charged(1) < 900 * MIB or d.cuMemAlloc(200 * MIB)[0] == OOM
""",
        _make(grants, GIB, 800 * MIB),
    )


@pytest.mark.parametrize("moment", MOMENTS)
def test_code_stays_charged_when_the_context_it_was_asked_in_ends(
    card_host: Host, grants: Grants, moment: str
) -> None:
    card_host.python(
        _at(moment)
        + """
for expected in (600, 900, 1200):
    module = load(300)
    second = new_context()
    must(d.cuFuncLoad(entry(module)))
    exact((expected + 300) * MIB)
    must(d.cuCtxDestroy(second))
    current(zero)
    exact(expected * MIB)
must(d.cuModuleUnload(module))
both(900, 300)
""",
        _make(grants, 3 * GIB, GIB),
    )


@pytest.mark.parametrize("newer", [True, False])
def test_code_that_is_unloaded_in_another_context_is_refunded_to_its_own(
    card_host: Host, grants: Grants, build_dir: Path, newer: bool
) -> None:
    older = dataclasses.replace(card_host, driver_dir=build_dir / "lib" / WITHOUT_LOADING_CALLS)
    (card_host if newer else older).python(
        _TWO
        + """
first = new_context()
module = load(300)
assert run(entry(module)) == OK
second = new_context()
assert run(entry(load(200))) == OK
exact(1400 * MIB)
must(d.cuModuleUnload(module))
exact(1100 * MIB)
must(d.cuCtxDestroy(first))
exact(800 * MIB)
must(d.cuCtxDestroy(second))
both(300, 300)
""",
        _make(grants, 3 * GIB, GIB),
    )


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kernel_belongs_to_the_context_of_its_node(
    card_host: Host, grants: Grants, moment: str
) -> None:
    card_host.python(
        _at(moment)
        + """
code = must(d.cuLibraryLoadData(text(300), [], [], 0, [], [], 0))
kernel = must(d.cuLibraryGetKernel(code, b"entry"))
parameters = kernel_params(d.CUfunction(0))
parameters.kern, parameters.ctx = kernel, one
must(d.cuGraphAddKernelNode(must(d.cuGraphCreate(0)), None, 0, parameters))
both(300, 600)
parameters.ctx = d.CUcontext(0)
must(d.cuGraphAddKernelNode(must(d.cuGraphCreate(0)), None, 0, parameters))
both(600, 600)
current(one)
function = must(d.cuKernelGetFunction(kernel))
current(zero)
must(d.cuFuncLoad(function))
both(600, 600)
""",
        _make(grants, GIB, GIB),
    )


def test_a_handle_that_comes_again_belongs_to_the_context_that_it_came_from(
    card_host: Host, grants: Grants
) -> None:
    card_host.python(
        _TWO
        + """
for i in range(40):
    mine, other = (zero, one) if i % 2 else (one, zero)
    current(mine)
    module = load(20)
    current(other)
    must(d.cuFuncLoad(entry(module)))
    both(320 if i % 2 else 300, 300 if i % 2 else 320)
    must(d.cuModuleUnload(module))
    both(300, 300)
""",
        _make(grants, GIB, GIB),
    )


def test_a_function_that_has_no_room_in_the_table_is_asked_for_its_module(
    card_host: Host, grants: Grants
) -> None:
    card_host.python(
        _TWO
        + """
current(one)
module = load(100)
function = entry(module)
many = load(2, entries=[f"f{i}" for i in range(60000)])
must(d.cuModuleEnumerateFunctions(60000, many))
current(zero)
must(d.cuFuncLoad(function))
both(300, 400)
""",
        _make(grants, GIB, GIB),
    )


def test_an_unloaded_library_is_refunded_to_no_other_context_than_its_own(
    card_host: Host, grants: Grants
) -> None:
    """With several on the card nobody can tell whose code is gone: all stays until they end."""
    card_host.python(
        _TWO
        + """
def use_library(*contexts):
    code = must(d.cuLibraryLoadData(text(300), [], [], 0, [], [], 0))
    kernel = must(d.cuLibraryGetKernel(code, b"entry"))
    for each in contexts:
        current(each)
        assert run(d.CUfunction(int(kernel))) == OK
    current(zero)
    return code
must(d.cuLibraryUnload(use_library(zero)))
both(300, 300)
second = new_context()
code = use_library(zero, second)
exact(1200 * MIB)
must(d.cuLibraryUnload(code))
assert held() == 600 * MIB and charged() == 1200 * MIB
must(d.cuCtxDestroy(second))
assert held() == 300 * MIB and charged() == 600 * MIB
current(zero)
must(d.cuDevicePrimaryCtxReset(0))
exact(0)
""",
        _make(grants, 3 * GIB, GIB),
    )
