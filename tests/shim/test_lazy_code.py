"""Code that is loaded lazily: charged whichever call brings it, and bounded by one load.

A driver may load a function's code when its handle is given out, when something is asked of it,
when it gets into a graph, when the graph is instantiated, or when it first runs: the simulated one
does each in turn.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.shim.conftest import GIB, MIB, Grants, Host
from tests.shim.exact import CODE

pytestmark = pytest.mark.sim

MOMENTS = ("function", "asked", "node", "instantiate", "launch")
WITHOUT_LOADING_CALLS = "simgpu-12020"


def _at(moment: str) -> str:
    return f"import os; os.environ['SIMGPU_LOADS_AT'] = {moment!r}\n" + CODE


def _older(host: Host, build_dir: Path) -> Host:
    """The same cards under a driver that has neither cuFuncLoad nor cuFuncIsLoaded."""
    return dataclasses.replace(host, driver_dir=build_dir / "lib" / WITHOUT_LOADING_CALLS)


_GRAPHS = """
functions = [entry(load(300)) for _ in range(10)]
exact()
graph, _ = graph_of(*functions)
executable = must(d.cuGraphInstantiate(graph, 0))
exact()
must(d.cuGraphUpload(executable, 0))
exact()
for _ in range(3):
    must(d.cuGraphLaunch(executable, 0))
    exact(CONTEXT + 3000 * MIB)
"""


@pytest.mark.parametrize("moment", MOMENTS)
def test_code_that_a_graph_is_the_first_to_run_is_charged(
    card_host: Host, grants: Grants, moment: str
) -> None:
    card_host.python(_at(moment) + _GRAPHS, grants.make(4 * GIB))


@pytest.mark.parametrize("moment", MOMENTS)
def test_also_under_a_driver_that_has_no_call_to_load(
    card_host: Host, grants: Grants, build_dir: Path, moment: str
) -> None:
    older = _older(card_host, build_dir)
    older.python(_at(moment) + _GRAPHS, grants.make(4 * GIB))


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_captured_first_launch_is_charged_and_so_is_its_local_memory_when_it_runs(
    card_host: Host, grants: Grants, moment: str
) -> None:
    card_host.python(
        _at(moment)
        + """
deep, again = (entry(load(300, 2048)) for _ in range(2))
stream = must(d.cuStreamCreate(1))
def capture(function):
    must(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    assert run(function, stream) == OK
    return must(d.cuStreamEndCapture(stream))
first = must(d.cuGraphInstantiate(capture(deep), 0))
exact()
must(d.cuGraphLaunch(first, stream))
exact(CONTEXT + 300 * MIB * (2 if os.environ["SIMGPU_LOADS_AT"] == "function" else 1)
      + 2048 * THREADS)
capture(again)
exact()
assert run(again, stream) == OK
exact(CONTEXT + 600 * MIB + 2048 * THREADS)
deeper = entry(load(2, 3072))
capture(deeper)
assert run(deeper) == OK
exact(CONTEXT + 602 * MIB + 3072 * THREADS)
""",
        grants.make(4 * GIB),
    )


_CHANGES = {
    "cuGraphExecKernelNodeSetParams": (
        "plain(library.cuGraphExecKernelNodeSetParams(exec_of(executable), handle(node), "
        "ctypes.c_void_p(kernel_params(new).getPtr())))"
    ),
    "cuGraphExecKernelNodeSetParams_v2": (
        "must(d.cuGraphExecKernelNodeSetParams(executable, node, kernel_params(new)))"
    ),
    "cuGraphExecNodeSetParams": (
        "must(d.cuGraphExecNodeSetParams(executable, node, node_params(new)))"
    ),
    "cuGraphExecUpdate": (
        "plain(library.cuGraphExecUpdate(exec_of(executable), handle(graph_of(new)[0]), "
        "ctypes.byref(ctypes.c_void_p()), ctypes.byref(ctypes.c_int())))"
    ),
    "cuGraphExecUpdate_v2": "must(d.cuGraphExecUpdate(executable, graph_of(new)[0]))",
    "cuGraphExecChildGraphNodeSetParams": (
        "must(d.cuGraphExecChildGraphNodeSetParams(executable, node, graph_of(new)[0]))"
    ),
    "cuGraphKernelNodeSetParams": (
        "plain(library.cuGraphKernelNodeSetParams(handle(node), "
        "ctypes.c_void_p(kernel_params(new).getPtr()))); exact(); "
        "executable = must(d.cuGraphInstantiate(graph, 0))"
    ),
    "cuGraphKernelNodeSetParams_v2": (
        "must(d.cuGraphKernelNodeSetParams(node, kernel_params(new))); exact(); "
        "executable = must(d.cuGraphInstantiate(graph, 0))"
    ),
    "cuGraphNodeSetParams": (
        "must(d.cuGraphNodeSetParams(node, node_params(new))); exact(); "
        "executable = must(d.cuGraphInstantiate(graph, 0))"
    ),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("call", _CHANGES)
def test_what_comes_into_a_graph_later_is_charged(
    card_host: Host, grants: Grants, call: str, moment: str
) -> None:
    child = "Child" in call
    card_host.python(
        _at(moment)
        + f"""
def plain(code):
    assert code == 0, code
def handle(of):
    return ctypes.c_void_p(int(of))
exec_of = handle
old, new = entry(load(100)), entry(load(300, 2048))
graph, nodes = graph_of(old)
if {child}:
    parent = must(d.cuGraphCreate(0))
    nodes = [must(d.cuGraphAddChildGraphNode(parent, None, 0, graph))]
    graph = parent
node = nodes[0]
executable = must(d.cuGraphInstantiate(graph, 0))
must(d.cuGraphLaunch(executable, 0))
exact()
{_CHANGES[call]}
exact()
for _ in range(2):
    must(d.cuGraphLaunch(executable, 0))
    exact(CONTEXT + 400 * MIB + 2048 * THREADS)
""",
        grants.make(4 * GIB),
    )


_ROUTES = {
    "cuLaunchKernel": "run(function)",
    "cuFuncLoad": "d.cuFuncLoad(function)[0]",
    "cuGraphAddKernelNode": "d.cuGraphAddKernelNode(graph, None, 0, kernel_params(function))[0]",
    "cuGraphAddNode": "d.cuGraphAddNode(graph, None, None, 0, node_params(function))[0]",
    "cuGraphExecKernelNodeSetParams": (
        "d.cuGraphExecKernelNodeSetParams(executable, node, kernel_params(function))[0]"
    ),
    "cuFuncGetAttribute": "d.cuFuncGetAttribute(d.CUfunction_attribute(0), function)[0]",
    "capture": "capture(function)",
}


@pytest.mark.parametrize("route", _ROUTES)
def test_a_container_is_over_its_limit_by_one_load_at_most(
    card_host: Host, grants: Grants, route: str
) -> None:
    """After that nothing is loaded by any route, and what was there before goes on."""
    card_host.python(
        _at("asked")
        + f"""
stream = must(d.cuStreamCreate(1))
def capture(function):
    must(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    code = run(function, stream)
    d.cuStreamEndCapture(stream)
    return code
known = entry(load(2))
assert run(known) == OK
graph, (node,) = graph_of(known)
executable = must(d.cuGraphInstantiate(graph, 0))
must(d.cuGraphLaunch(executable, 0))
modules = [load(300) for _ in range(6)]
functions = [entry(module) for module in modules]
codes = []
for function in functions:
    codes.append({_ROUTES[route]})
    exact()
assert codes == [OK, OK, OK, OOM, OOM, OOM], codes
exact(CONTEXT + 902 * MIB)
assert d.cuModuleLoadData(text(2))[0] == OOM
assert d.cuLibraryLoadData(text(2), [], [], 0, [], [], 0)[0] == OOM
exact(CONTEXT + 902 * MIB)
assert run(known) == OK
must(d.cuGraphLaunch(executable, 0))
must(d.cuGraphLaunch(must(d.cuGraphInstantiate(graph, 0)), 0))
assert must(d.cuFuncIsLoaded(functions[0])).value == 1 and run(functions[0]) == OK
must(d.cuModuleUnload(modules[0]))
function = functions[-1]
assert {_ROUTES[route]} == OK, "there is room again"
exact(CONTEXT + 902 * MIB)
""",
        grants.make(1000 * MIB),
    )


def test_without_a_call_to_load_it_is_one_first_launch(
    card_host: Host, grants: Grants, build_dir: Path
) -> None:
    _older(card_host, build_dir).python(
        CODE
        + """
functions = [entry(load(300)) for _ in range(6)]
assert [run(function) for function in functions] == [OK, OK, OK, OOM, OOM, OOM]
exact(CONTEXT + 900 * MIB)
assert run(functions[0]) == OK
""",
        grants.make(1000 * MIB),
    )


def test_at_the_limit_what_is_loaded_runs_and_what_is_not_is_refused(
    card_host: Host, grants: Grants
) -> None:
    card_host.python(
        CODE
        + """
module = load(100, entries=("one", "two"))
assert run(entry(module, b"one")) == OK
absent = entry(load(2))
must(d.cuMemAlloc(must(d.cuMemGetInfo())[0]))
exact(GIB)
assert run(absent) == OOM
exact(GIB)
assert run(entry(module, b"two")) == OK, "its code is there"
assert run(entry(module, b"one")) == OK
graph, _ = graph_of(entry(module, b"two"))
must(d.cuGraphLaunch(must(d.cuGraphInstantiate(graph, 0)), 0))
exact(GIB)
""",
        grants.make(GIB),
    )


def test_local_memory_is_reserved_before_a_first_launch(card_host: Host, grants: Grants) -> None:
    card_host.python(
        CODE
        + """
deep = entry(load(2, 2048))
kept = must(d.cuMemAlloc(256 * MIB))
for _ in range(3):
    assert run(deep) == OOM
    exact(CONTEXT + 258 * MIB)
must(d.cuMemFree(kept))
assert run(deep) == OK
exact(CONTEXT + 2 * MIB + 2048 * THREADS)
must(d.cuMemAlloc(64 * MIB))
assert run(entry(load(2, 2048))) == OK, "there is room for it already"
exact(CONTEXT + 68 * MIB + 2048 * THREADS)
""",
        grants.make(850 * MIB),
    )


def test_functions_beyond_the_table_are_measured_too(card_host: Host, grants: Grants) -> None:
    card_host.python(
        CODE
        + """
many = load(2, entries=[f"f{i}" for i in range(9000)])
for i in range(9000):
    assert run(entry(many, b"f%d" % i)) == OK
for size in (100, 200, 300):
    before = charged()
    assert run(entry(load(size))) == OK
    exact(before + size * MIB)
""",
        grants.make(4 * GIB),
    )


def test_a_kernel_of_a_library_is_charged_in_each_context_and_on_each_card(
    card_host: Host, grants: Grants
) -> None:
    card_host.python(
        CODE
        + """
code = must(d.cuLibraryLoadData(text(300), [], [], 0, [], [], 0))
kernel = must(d.cuLibraryGetKernel(code, b"entry"))
(listed,) = must(d.cuLibraryEnumerateKernels(1, code))
assert int(listed) == int(kernel)
handle = d.CUfunction(int(kernel))
assert run(handle) == OK
exact(CONTEXT + 300 * MIB)
second = must(d.cuCtxCreate(None, 0, 0))
for _ in range(2):
    assert run(handle) == OK
    exact(2 * CONTEXT + 600 * MIB)
use(1)
stream = must(d.cuStreamCreate(1))
exact(CONTEXT, card=1)
use(0)
for _ in range(2):
    assert run(handle, stream) == OK, "in the context of its stream"
    exact(CONTEXT + 300 * MIB, card=1)
    exact(2 * CONTEXT + 600 * MIB)
""",
        grants.make(3 * GIB, GIB),
    )


_ASKED = {
    "cuFuncGetAttribute": "(word, 0, function)",
    "cuFuncSetAttribute": "(function, 8, 1024)",
    "cuFuncSetCacheConfig": "(function, 1)",
    "cuFuncSetSharedMemConfig": "(function, 1)",
    "cuFuncGetModule": "(word, function)",
    "cuFuncGetName": "(word, function)",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": "(word, function, 32, 0)",
    "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags": "(word, function, 32, 0, 0)",
    "cuOccupancyMaxPotentialBlockSize": "(word, more, function, None, 0, 0)",
    "cuOccupancyMaxPotentialBlockSizeWithFlags": "(word, more, function, None, 0, 0, 0)",
    "cuOccupancyAvailableDynamicSMemPerBlock": "(word, function, 1, 32)",
    "cuModuleGetGlobal": "(word, more, module, b'none')",
    "cuModuleGetGlobal_v2": "(word, more, module, b'none')",
    "cuLibraryGetGlobal": "(word, more, code, b'none')",
    "cuLibraryGetManaged": "(word, more, code, b'none')",
}


@pytest.mark.parametrize("call", _ASKED)
def test_code_that_a_question_brings_is_charged(card_host: Host, grants: Grants, call: str) -> None:
    card_host.python(
        _at("asked")
        + f"""
def pointer(of):
    return ctypes.c_void_p(int(of))
module = load(300)
function = pointer(entry(module))
module = pointer(module)
code = pointer(must(d.cuLibraryLoadData(text(300), [], [], 0, [], [], 0)))
word, more = ctypes.byref(ctypes.c_uint64()), ctypes.byref(ctypes.c_uint64())
exact(CONTEXT)
assert library.{call}{_ASKED[call]} == {500 if "cuModuleGet" in call or "cuLibrary" in call else 0}
exact(CONTEXT + 300 * MIB)
""",
        grants.make(2 * GIB),
    )


_ASKED_ON = {
    "cuKernelGetAttribute": "(word, 0, kernel, 1)",
    "cuKernelSetAttribute": "(8, 1024, kernel, 1)",
    "cuKernelSetCacheConfig": "(kernel, 1, 1)",
}


@pytest.mark.parametrize("call", _ASKED_ON)
def test_code_that_a_question_brings_onto_another_card_is_charged_there(
    card_host: Host, grants: Grants, call: str
) -> None:
    card_host.python(
        _at("asked")
        + f"""
use(1)
use(0)
code = must(d.cuLibraryLoadData(text(300), [], [], 0, [], [], 0))
kernel = ctypes.c_void_p(int(must(d.cuLibraryGetKernel(code, b"entry"))))
word = ctypes.byref(ctypes.c_uint64())
assert library.{call}{_ASKED_ON[call]} == 0
exact(CONTEXT)
exact(CONTEXT + 300 * MIB, card=1)
must(d.cuDevicePrimaryCtxRelease(1))
exact(0, card=1)
""",
        grants.make(GIB, GIB),
    )
