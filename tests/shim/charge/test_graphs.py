"""Memory of graphs: a launch reserves the memory before the driver call, and is charged exactly."""

from __future__ import annotations

import pytest

from tests.shim.conftest import GIB, MIB, Limited
from tests.shim.exact import GRAPHS, SLOW

pytestmark = pytest.mark.sim

BEGIN = GRAPHS


def test_row_15_graph_memory(limited: Limited) -> None:
    limited(GIB)("""
graph = scratch(300 * MIB, 200 * MIB + 1)
executable = instantiate(graph)
same(0)
for _ in range(3):
    assert launch(executable) == OK
    same(502 * MIB)
child, parent = scratch(100 * MIB), scratch(50 * MIB)
move_into(parent, child)
nested = instantiate(parent)
assert launch(nested) == OK
same(652 * MIB)
too_large = instantiate(scratch(GIB + 1))
assert launch(too_large) == OOM
assert d.cuGraphUpload(too_large, 0)[0] == OOM
child, parent = scratch(GIB), scratch(MIB)
move_into(parent, child)
assert launch(instantiate(parent)) == OOM, "the child counts"
must(d.cuGraphExecDestroy(executable))
must(d.cuGraphDestroy(graph))
after(d.cuDeviceGraphMemTrim(0), 0)
assert launch(nested) == OK
same(150 * MIB)
must(d.cuGraphExecDestroy(nested))
after(d.cuDeviceGraphMemTrim(0), 0)
""")


_PROGRAMS = {
    "graphs and plain memory share one limit": """
half = must(d.cuMemAlloc(GIB // 2))
fits, other = instantiate(scratch(GIB // 2)), instantiate(scratch(GIB // 2 + 1))
assert launch(fits) == OK
same(GIB)
assert d.cuMemAlloc(1)[0] == OK, "what graphs hold unused makes room"
assert launch(fits) == OOM
must(d.cuMemFree(half))
assert launch(fits) == OK
assert launch(other) == OK, "the first one's is idle"
assert charged() == held() - begun <= GIB
""",
    "replays go on at the limit": """
# A graph that still runs can be launched again, although the limit leaves no free memory.
PTX = b".version 8.0\\n.target sm_80\\n.address_size 64\\n// simgpu: duration_ns=300000000\\n" \\
      b".visible .entry slow() { ret; }\\n"
kernel = must(d.cuModuleGetFunction(must(d.cuModuleLoadData(PTX)), b"slow"))
stream = must(d.cuStreamCreate(1))
must(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
address = must(d.cuMemAllocAsync(700 * MIB, stream))
must(d.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0))
must(d.cuMemFreeAsync(address, stream))
executable = instantiate(must(d.cuStreamEndCapture(stream)))
for _ in range(3):
    must(d.cuGraphLaunch(executable, stream))
assert d.cuMemAlloc(512 * MIB)[0] == OOM
must(d.cuGraphLaunch(executable, stream))
must(d.cuStreamSynchronize(stream))
assert held() - begun == charged() >= 700 * MIB
must(d.cuMemAlloc(512 * MIB))
""",
    "what a graph allocated for the program stays charged": """
graph = new_graph()
_, address = add_alloc(graph, GIB)
executable = instantiate(graph)
assert launch(executable) == OK
same(GIB)
must(d.cuGraphExecDestroy(executable))
must(d.cuGraphDestroy(graph))
after(d.cuDeviceGraphMemTrim(0), GIB)
refused(d.cuMemAlloc(1), GIB)
must(d.cuMemFreeAsync(address, 0))
after(d.cuMemAlloc(64 * MIB), 64 * MIB)
""",
    "a graph over two gpus": """
use(1)
begun1 = held(1) - charged(1)
use(0)
both = instantiate(scratch(200 * MIB, gpu=1, graph=scratch(700 * MIB)))
assert launch(both) == OK
same(700 * MIB); same(200 * MIB, 1, begun1)
for gpu, size in ((0, GIB + 1), (1, 300 * MIB)):
    wrong = instantiate(scratch(size, gpu=gpu, graph=scratch(MIB, gpu=1 - gpu)))
    assert launch(wrong) == OOM
    assert charged() <= GIB and charged(1) <= 256 * MIB
for gpu in (0, 1):
    must(d.cuDeviceGraphMemTrim(gpu))
same(0); same(0, 1, begun1)
""",
    "a capture is neither charged nor disturbed": f"""{SLOW}
# A captured allocation takes no memory. A refusal in another thread does not end the capture.
GLOBAL = d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
stream = must(d.cuStreamCreate(1))
keep(default, 2**64 - 1)
drop_now(must(d.cuMemAllocAsync(64 * MIB, 0)))
rest = after(d.cuMemAllocFromPoolAsync(GIB - 64 * MIB, new_pool(), 0), GIB)
def elsewhere():
    assert d.cuMemAllocAsync(128 * MIB, 0)[0] == OOM
must(d.cuStreamBeginCapture(stream, GLOBAL))
first = must(d.cuMemAllocAsync(100 * MIB, stream))
beside(elsewhere).join()
second = must(d.cuMemAllocAsync(GIB, stream))
must(d.cuMemGetInfo())
must(d.cuMemFreeAsync(second, stream))
graph = must(d.cuStreamEndCapture(stream))
assert charged() <= GIB and held() - begun == charged()
executable = instantiate(graph)
assert launch(executable, stream) == OOM
drop_now(rest)
""",
    "an upload at instantiation is charged": """
def with_upload(graph):
    p = d.CUDA_GRAPH_INSTANTIATE_PARAMS()
    p.flags = d.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD.value
    return d.cuGraphInstantiateWithParams(graph, p)
refused(with_upload(scratch(GIB + 1)), 0)
executable = after(with_upload(scratch(GIB)), GIB)
assert launch(executable) == OK
same(GIB)
""",
    "a graph that is not given leaves the handle as it was": """
# The driver creates the graph. The library destroys it, because its table of graphs is full.
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
graph = scratch(MIB)
full = [instantiate(scratch(2 * MIB)) for _ in range(2048)]
instantiate(new_graph())
handle, none = ctypes.c_void_p(int(graph)), ctypes.c_void_p()
parameters = (ctypes.c_uint64 * 4)()
for call, arguments in (
    ("cuGraphInstantiate", (none, none, ctypes.c_size_t(0))),
    ("cuGraphInstantiate_v2", (none, none, ctypes.c_size_t(0))),
    ("cuGraphInstantiateWithFlags", (ctypes.c_uint64(0),)),
    ("cuGraphInstantiateWithParams", (parameters,)),
):
    made = ctypes.c_void_p(12345)
    assert getattr(cuda, call)(ctypes.byref(made), handle, *arguments) == 2, call
    assert made.value == 12345, call
    assert getattr(cuda, call)(None, handle, *arguments) == 1, call
must(d.cuGraphExecDestroy(full.pop()))
assert launch(instantiate(graph)) == OK
""",
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_a_program_is_charged_the_memory_of_its_graphs(limited: Limited, name: str) -> None:
    limited(GIB, 256 * MIB)(_PROGRAMS[name])
