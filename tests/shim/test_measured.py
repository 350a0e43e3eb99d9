"""What the driver takes by itself is charged as the card gives it up, and refunded when it is back.

Each program compares two accounts after every step: the daemon's of the card, and the region's.
"""

from __future__ import annotations

import pytest

from shim import region
from tests.shim.clients import CUDA
from tests.shim.conftest import CARDS, GIB, MIB, Grants, Host

pytestmark = pytest.mark.sim

_TOOLS = """
import ctypes, json, os, socket, struct
from pathlib import Path
from cuda.bindings import driver as d
from shim import region
library = ctypes.CDLL("libcuda.so.1")
def control(**request):
    with socket.socket(socket.AF_UNIX) as way:
        way.connect(os.environ["SIMGPU_DIR"] + "/control.sock")
        way.sendall(json.dumps(request).encode() + bytes([10]))
        return json.loads(way.makefile().readline())
def held(card=0):
    return control(op="status")["cards"][card]["used_bytes"]
def used(card=0):
    return region.status(Path(os.environ["GPUSLICE_DIR"]))[card].use.used_bytes
def exact(expected=None, card=0):
    assert held(card) == used(card), (held(card) - used(card), "of the card are not charged")
    if expected is not None:
        assert used(card) == expected, used(card) / MIB
PTX = b'''
.version 8.0
.target sm_80
.address_size 64
// simgpu: local_bytes=2048
.visible .entry deep() { ret; }
.visible .entry flat() { ret; }
'''
THREADS = 108 * 2048
CONTEXT, MODULE = 300 * 2**20, 2 * 2**20
def run(function):
    return d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)[0]
"""
_BEGIN = _TOOLS + CUDA


def test_contexts_are_charged_as_they_come_and_go(card_host: Host, grants: Grants) -> None:
    card_host.python(
        _BEGIN
        + """
exact(CONTEXT)
use(0)
exact(CONTEXT)
for step in range(3):
    context = must(d.cuCtxCreate(None, 0, 0))
    exact(2 * CONTEXT)
    must(d.cuMemAlloc(64 * MIB))
    exact(2 * CONTEXT + 64 * MIB)
    must(d.cuCtxDestroy(context))
    exact(CONTEXT)
use(0)
use(1)
exact(CONTEXT, card=1)
must(d.cuDevicePrimaryCtxReset(0))
exact(0)
use(0)
exact(CONTEXT)
""",
        grants.make(2 * GIB, 2 * GIB),
    )


_CREATIONS = {
    "cuCtxCreate": "(ctypes.byref(made), 0, 0)",
    "cuCtxCreate_v2": "(ctypes.byref(made), 0, 0)",
    "cuCtxCreate_v3": "(ctypes.byref(made), None, 0, 0, 0)",
    "cuCtxCreate_v4": "(ctypes.byref(made), None, 0, 0)",
}


@pytest.mark.parametrize("call", _CREATIONS)
def test_a_context_that_does_not_fit_is_refused_and_gone(
    card_host: Host, grants: Grants, call: str
) -> None:
    card_host.python(
        _BEGIN
        + f"""
made = ctypes.c_void_p()
def create():
    return library.{call}{_CREATIONS[call]}
assert create() == 0
exact(2 * CONTEXT)
assert int(must(d.cuCtxGetDevice())) == 0
assert library.cuCtxDestroy_v2(made) == 0
must(d.cuMemAlloc(512 * MIB))
assert create() == 2
exact(CONTEXT + 512 * MIB)
assert library.{call}{_CREATIONS[call].replace("ctypes.byref(made)", "None")} == 1
""",
        grants.make(1000 * MIB),
    )


_REFUSED = {
    "cuCtxCreate": "(ctypes.byref(made), 0xffff, 0)",
    "cuCtxCreate_v2": "(ctypes.byref(made), 0xffff, 0)",
    "cuCtxCreate_v3": "(ctypes.byref(made), None, 0, 0xffff, 0)",
    "cuCtxCreate_v4": "(ctypes.byref(made), None, 0xffff, 0)",
}


@pytest.mark.parametrize("call", _REFUSED)
def test_after_a_context_that_the_driver_refuses_code_is_charged_as_before(
    card_host: Host, grants: Grants, call: str
) -> None:
    card_host.python(
        _BEGIN
        + f"""
made = ctypes.c_void_p()
assert library.{call}{_REFUSED[call]} == 1
exact(CONTEXT)
module = must(d.cuModuleLoadData(PTX))
assert run(must(d.cuModuleGetFunction(module, b"deep"))) == OK
exact(CONTEXT + MODULE + 2048 * THREADS)
""",
        grants.make(2 * GIB),
    )


def test_after_a_refused_retain_code_is_charged_as_before(card_host: Host, grants: Grants) -> None:
    card_host.python(
        _BEGIN
        + """
must(d.cuCtxCreate(None, 0, 0))
must(d.cuDevicePrimaryCtxReset(0))
exact(CONTEXT)
assert control(op="fail", card=0, call="cuDevicePrimaryCtxRetain", code=999, count=1)["ok"]
assert int(d.cuDevicePrimaryCtxRetain(0)[0]) == 999
exact(CONTEXT)
assert run(must(d.cuModuleGetFunction(must(d.cuModuleLoadData(PTX)), b"flat"))) == OK
exact(CONTEXT + MODULE)
""",
        grants.make(2 * GIB),
    )


def test_the_first_context_that_does_not_fit_is_refused_and_gone(
    card_host: Host, grants: Grants
) -> None:
    card_host.python(
        _TOOLS
        + """
d.cuInit(0)
for _ in range(2):
    assert d.cuDevicePrimaryCtxRetain(0)[0] == 2
    exact(0)
    assert d.cuCtxCreate(None, 0, 0)[0] == 2
    exact(0)
    assert tuple(d.cuDevicePrimaryCtxGetState(0))[2] == 0
""",
        grants.make(200 * MIB),
    )


@pytest.mark.parametrize("mode", ["LAZY", "EAGER"])
def test_code_is_charged_when_it_comes_and_refunded_when_it_goes(
    card_host: Host, grants: Grants, mode: str
) -> None:
    card_host.python(
        f"import os; os.environ['CUDA_MODULE_LOADING'] = {mode!r}\n"
        + _BEGIN
        + f"""
eager = {mode == "EAGER"}
for _ in range(3):
    module = must(d.cuModuleLoadData(PTX))
    exact(CONTEXT + MODULE * eager)
    flat = must(d.cuModuleGetFunction(module, b"flat"))
    exact(CONTEXT + MODULE * eager)
    for _ in range(3):
        assert run(flat) == OK
        exact(CONTEXT + MODULE)
    must(d.cuModuleUnload(module))
    exact(CONTEXT)
for _ in range(3):
    code = must(d.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))
    exact(CONTEXT + MODULE * eager)
    kernel = must(d.cuLibraryGetKernel(code, b"flat"))
    assert run(d.CUfunction(int(kernel))) == OK
    exact(CONTEXT + MODULE)
    must(d.cuLibraryUnload(code))
    exact(CONTEXT)
""",
        grants.make(2 * GIB),
    )


def test_code_of_each_kind_of_load(card_host: Host, grants: Grants) -> None:
    card_host.python(
        "import os; os.environ['CUDA_MODULE_LOADING'] = 'EAGER'\n"
        + _BEGIN
        + """
import tempfile
with tempfile.NamedTemporaryFile() as file:
    file.write(PTX)
    file.flush()
    path = file.name.encode()
    loads = [
        lambda: d.cuModuleLoad(path),
        lambda: d.cuModuleLoadData(PTX),
        lambda: d.cuModuleLoadDataEx(PTX, 0, [], []),
        lambda: d.cuModuleLoadFatBinary(PTX),
        lambda: d.cuLibraryLoadData(PTX, [], [], 0, [], [], 0),
        lambda: d.cuLibraryLoadFromFile(path, [], [], 0, [], [], 0),
    ]
    for count, load in enumerate(loads, 1):
        must(load())
        exact(CONTEXT + count * MODULE)
    rest = must(d.cuMemGetInfo())[0]
    must(d.cuMemAlloc(rest))
    for load in loads:
        assert load()[0] == OOM
        exact(used())
        assert used() == 2 * GIB
""",
        grants.make(2 * GIB),
    )


def test_lazily_loaded_code_is_charged_at_each_call_that_may_load_it(
    card_host: Host, grants: Grants
) -> None:
    card_host.python(
        _BEGIN
        + """
module = must(d.cuModuleLoadData(PTX))
must(d.cuFuncLoad(must(d.cuModuleGetFunction(module, b"flat"))))
exact(CONTEXT + MODULE)
code = must(d.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))
kernel = must(d.cuLibraryGetKernel(code, b"flat"))
function = must(d.cuKernelGetFunction(kernel))
must(d.cuFuncLoad(function))
exact(CONTEXT + 2 * MODULE)
""",
        grants.make(2 * GIB),
    )


def test_a_large_module_that_is_loaded_at_its_first_launch_is_charged_whole(
    card_host: Host, grants: Grants
) -> None:
    """Its variables come with it: hundreds of MiB are nothing unusual."""
    card_host.python(
        _BEGIN
        + """
size = b"// simgpu: module_bytes=%d\\n" % (900 * MIB)
large = PTX.replace(b"// simgpu: local", size + b"// simgpu: local")
module = must(d.cuModuleLoadData(large))
exact(CONTEXT)
assert run(must(d.cuModuleGetFunction(module, b"flat"))) == OK
exact(CONTEXT + 900 * MIB)
assert d.cuMemAlloc(GIB)[0] == OOM
must(d.cuModuleUnload(module))
exact(CONTEXT)
""",
        grants.make(2 * GIB),
    )


def test_local_memory_of_a_first_launch_stays_with_its_context(
    card_host: Host, grants: Grants
) -> None:
    card_host.python(
        _BEGIN
        + """
module = must(d.cuModuleLoadData(PTX))
deep = must(d.cuModuleGetFunction(module, b"deep"))
assert run(deep) == OK
exact(CONTEXT + MODULE + 2048 * THREADS)
kept = must(d.cuMemAlloc(must(d.cuMemGetInfo())[0]))
assert d.cuMemAlloc(1)[0] == OOM
must(d.cuMemFree(kept))
must(d.cuModuleUnload(module))
exact(CONTEXT + 2048 * THREADS)
must(d.cuDevicePrimaryCtxReset(0))
exact(0)
""",
        grants.make(800 * MIB),
    )


_UNLOADS = {
    "cuModuleUnload": "must(d.cuModuleUnload(code))",
    "cuLibraryUnload": "must(d.cuLibraryUnload(code))",
    "cuCtxDestroy": "must(d.cuCtxDestroy(must(d.cuCtxGetCurrent()))); use(0)",
    "cuDevicePrimaryCtxRelease": "must(d.cuDevicePrimaryCtxRelease(0)); use(0)",
    "cuDevicePrimaryCtxReset": "must(d.cuDevicePrimaryCtxReset(0)); use(0)",
}


@pytest.mark.parametrize("call", _UNLOADS)
def test_a_function_handle_that_comes_again_is_measured_again(
    card_host: Host, grants: Grants, call: str
) -> None:
    card_host.python(
        "import os; os.environ['SIMGPU_REUSE_HANDLES'] = '1'\n"
        + _BEGIN
        + f"""
FLAT, DEEP = (PTX.replace(b".visible .entry " + left + b"() {{ ret; }}", b"")
              for left in (b"deep", b"flat"))
FLAT = FLAT.replace(b"// simgpu: local_bytes=2048", b"")
def load(text, name):
    if {call == "cuCtxDestroy"}:
        must(d.cuCtxCreate(None, 0, 0))
    if {call == "cuLibraryUnload"}:
        code = must(d.cuLibraryLoadData(text, [], [], 0, [], [], 0))
        return code, d.CUfunction(int(must(d.cuLibraryGetKernel(code, name))))
    code = must(d.cuModuleLoadData(text))
    return code, must(d.cuModuleGetFunction(code, name))
def unload(code):
    {_UNLOADS[call]}
code, first = load(FLAT, b"flat")
assert run(first) == OK
unload(code)
for _ in range(5):
    code, again = load(DEEP, b"deep")
    if int(again) == int(first):
        break
    unload(code)
assert int(again) == int(first), "no handle came again"
before = used()
exact()
assert run(again) == OK
exact()
assert used() >= before + 2048 * THREADS
""",
        grants.make(2 * GIB),
    )


_LAUNCHES = {
    "cuLaunchKernel": "(deep, 1, 1, 1, 1, 1, 1, 0, None, None, None)",
    "cuLaunchKernel_ptsz": "(deep, 1, 1, 1, 1, 1, 1, 0, None, None, None)",
    "cuLaunchKernelEx": "(config, deep, None, None)",
    "cuLaunchKernelEx_ptsz": "(config, deep, None, None)",
    "cuLaunchCooperativeKernel": "(deep, 1, 1, 1, 1, 1, 1, 0, None, None)",
    "cuLaunchCooperativeKernel_ptsz": "(deep, 1, 1, 1, 1, 1, 1, 0, None, None)",
    "cuLaunchCooperativeKernelMultiDevice": "(launches, 1, 0)",
    "cuLaunch": "(deep)",
    "cuLaunchGrid": "(deep, 1, 1)",
    "cuLaunchGridAsync": "(deep, 1, 1, None)",
}


@pytest.mark.parametrize("call", _LAUNCHES)
def test_the_first_launch_is_charged_by_whichever_call(
    card_host: Host, grants: Grants, call: str
) -> None:
    card_host.python(
        _BEGIN
        + f"""
module = must(d.cuModuleLoadData(PTX))
deep = ctypes.c_void_p(int(must(d.cuModuleGetFunction(module, b"deep"))))
config = (ctypes.c_uint32 * 16)(1, 1, 1, 1, 1, 1)
stream = int(must(d.cuStreamCreate(0)))
launches = struct.pack("P7IPP", deep.value, 1, 1, 1, 1, 1, 1, 0, stream, 0)
assert library.cuFuncSetBlockShape(deep, 1, 1, 1) == 0
for _ in range(2):
    assert library.{call}{_LAUNCHES[call]} == 0
    exact(CONTEXT + MODULE + 2048 * THREADS)
""",
        grants.make(2 * GIB),
    )


def test_limits_of_a_context_are_charged_and_what_does_not_fit_is_undone(
    card_host: Host, grants: Grants
) -> None:
    card_host.python(
        _BEGIN
        + """
limit = d.CUlimit
STACK, FIFO, HEAP = (limit.CU_LIMIT_STACK_SIZE, limit.CU_LIMIT_PRINTF_FIFO_SIZE,
                     limit.CU_LIMIT_MALLOC_HEAP_SIZE)
must(d.cuCtxSetLimit(HEAP, 136 * MIB))
exact(CONTEXT + 128 * MIB)
must(d.cuCtxSetLimit(FIFO, 33 * MIB))
exact(CONTEXT + 160 * MIB)
for what, value in ((HEAP, 900 * MIB), (FIFO, 900 * MIB), (STACK, 4096)):
    before = must(d.cuCtxGetLimit(what))
    assert d.cuCtxSetLimit(what, value)[0] == OOM
    assert must(d.cuCtxGetLimit(what)) == before
    exact(CONTEXT + 160 * MIB)
must(d.cuCtxSetLimit(HEAP, 8 * MIB))
must(d.cuCtxSetLimit(FIFO, 1 * MIB))
exact(CONTEXT)
must(d.cuCtxSetLimit(STACK, 2048))
exact(CONTEXT + 2048 * THREADS)
assert d.cuCtxSetLimit(99, 1)[0] == d.CUresult.CUDA_ERROR_UNSUPPORTED_LIMIT
""",
        grants.make(1000 * MIB),
    )


def test_limits_that_are_counts_are_charged_what_they_take(card_host: Host, grants: Grants) -> None:
    card_host.python(
        _BEGIN
        + """
limit = d.CUlimit
DEPTH, LAUNCHES = (limit.CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH,
                   limit.CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT)
must(d.cuCtxSetLimit(DEPTH, 5))
exact(CONTEXT + 3 * 1024 * THREADS)
for what, value in ((DEPTH, 7), (LAUNCHES, 2048 + 32768)):
    before = must(d.cuCtxGetLimit(what))
    assert d.cuCtxSetLimit(what, value)[0] == OOM
    assert must(d.cuCtxGetLimit(what)) == before
    exact(CONTEXT + 3 * 1024 * THREADS)
must(d.cuCtxSetLimit(DEPTH, 2))
exact(CONTEXT)
must(d.cuCtxSetLimit(LAUNCHES, 2048 + 32768))
exact(CONTEXT + 256 * MIB)
must(d.cuCtxSetLimit(LAUNCHES, 2048))
exact(CONTEXT)
""",
        grants.make(1000 * MIB),
    )


def test_everything_together_comes_to_the_same_and_back_to_nothing(
    card_host: Host, grants: Grants
) -> None:
    directory = grants.make(4 * GIB)
    card_host.python(
        _BEGIN
        + """
limit = d.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE
contexts = [must(d.cuCtxGetCurrent())] + [must(d.cuCtxCreate(None, 0, 0)) for _ in range(2)]
for turn in range(3):
    modules, memory = [], []
    for context in contexts:
        must(d.cuCtxSetCurrent(context))
        exact()
        modules.append(must(d.cuModuleLoadData(PTX)))
        memory.append(must(d.cuMemAlloc((30 + 2 * turn) * MIB)))
        must(d.cuCtxSetLimit(limit, (16 + turn) * MIB))
        exact()
        assert run(must(d.cuModuleGetFunction(modules[-1], b"flat"))) == OK
        exact()
    for context, module, address in zip(contexts, modules, memory):
        must(d.cuCtxSetCurrent(context))
        must(d.cuMemFree(address))
        must(d.cuModuleUnload(module))
        must(d.cuCtxSetLimit(limit, 8 * MIB))
        exact()
    exact(3 * CONTEXT)
for context in contexts[1:]:
    must(d.cuCtxDestroy(context))
must(d.cuDevicePrimaryCtxRelease(0))
exact(0)
""",
        directory,
    )
    assert region.status(directory)[0].use.used_bytes == 0


def test_threads_that_make_contexts_and_load_code_at_once_charge_each_once(
    card_host: Host, grants: Grants
) -> None:
    card_host.python(
        _BEGIN
        + """
import threading
must(d.cuDevicePrimaryCtxRelease(0))
def work():
    must(d.cuCtxSetCurrent(must(d.cuDevicePrimaryCtxRetain(0))))
    for _ in range(10):
        module = must(d.cuModuleLoadData(PTX))
        assert run(must(d.cuModuleGetFunction(module, b"flat"))) == OK
        must(d.cuModuleUnload(module))
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
exact(CONTEXT)
""",
        grants.make(4 * GIB),
    )


def test_a_neighbour_on_the_card_makes_the_first_context_cost_half_a_gibibyte_at_most(
    card_host: Host, grants: Grants
) -> None:
    program = (
        _BEGIN
        + """
if os.environ["TURN"] == "1":
    print(used() // MIB)
    second = must(d.cuCtxCreate(None, 0, 0))
    print(used() // MIB)
else:
    import subprocess, sys
    must(d.cuMemAlloc(GIB))
    exact(CONTEXT + GIB)
    env = {**os.environ, "TURN": "1", "GPUSLICE_DIR": os.environ["NEIGHBOUR_DIR"]}
    done = subprocess.run([sys.executable, "-c", os.environ["PROGRAM"]], env=env,
                          capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "512\\n812\\n"), done
    exact(CONTEXT + GIB)
"""
    )
    mine, neighbour = grants.make(3 * GIB), grants.make(GIB)
    card_host.python(
        f"import os; os.environ.setdefault('TURN', '0')\n"
        f"os.environ.setdefault('NEIGHBOUR_DIR', {str(neighbour)!r})\n"
        f"os.environ.setdefault('PROGRAM', {program!r})\n" + program,
        mine,
    )


def test_what_the_dead_still_hold_is_not_taken_for_the_first_context(
    slow_card_host: Host, grants: Grants
) -> None:
    """Their charge is gone, their memory not yet: what that adds to the context's comes back."""
    killed = _BEGIN + "must(d.cuMemAlloc(GIB)); os.kill(os.getpid(), 9)"
    slow_card_host.python(
        _TOOLS
        + f"""
import subprocess, sys
assert subprocess.run([sys.executable, "-c", {killed!r}]).returncode == -9
"""
        + CUDA
        + """
assert held() == 2 * CONTEXT + GIB and used() == 512 * MIB, "for half a second the card is fuller"
address = must(d.cuMemAlloc(2 * GIB - CONTEXT))
exact(2 * GIB)
must(d.cuMemFree(address))
exact(CONTEXT)
must(d.cuDevicePrimaryCtxReset(0))
exact(0)
""",
        grants.make(2 * GIB),
    )


def test_a_reservation_of_our_own_is_not_taken_for_what_the_dead_gave_back(
    card_host: Host, grants: Grants
) -> None:
    """Of the second and third context, while the first one's charge may still be corrected."""
    grant = grants.make(3 * GIB)
    for _ in range(3):
        card_host.python(
            _BEGIN
            + """
exact(CONTEXT)
for count in (2, 3):
    must(d.cuCtxCreate(None, 0, 0))
    exact(count * CONTEXT)
""",
            grant,
        )


def test_an_unmanaged_process_sees_the_card_as_it_is(card_host: Host) -> None:
    card_host.python(
        CUDA
        + f"""
assert must(d.cuMemGetInfo()) == ({CARDS[0][1]} - 300 * MIB, {CARDS[0][1]})
""",
        preload=True,
    )
