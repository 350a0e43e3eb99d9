"""What is measured while other threads of the container come by memory: no byte of theirs is in it.

The driver is slow at one call of each thread, so that the measurement begins and ends in the middle
of what the other does.
"""

from __future__ import annotations

import pytest

from contract import names, region_file
from tests.shim.conftest import GIB, Grants, Host
from tests.shim.exact import CODE, GRAPHS

pytestmark = pytest.mark.sim

F_OFD_GETLK = 36

_BEGIN = (
    GRAPHS
    + CODE
    + f"""
import fcntl, struct, threading, time
from contextlib import contextmanager
@contextmanager
def slow(**calls):
    for call, ms in calls.items():
        assert control(op="latency", card=0, call=call, ns=ms * 10**6)["ok"]
    try:
        yield
    finally:
        for call in calls:
            assert control(op="latency", card=0, call=call, ns=0)["ok"]
def until(reached, pause=0.01):
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(pause)
def turn_is_taken():
    with open(os.environ["GPUSLICE_DIR"] + "/{names.FILE_REGION}", "r+b") as file:
        wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, {region_file.LOCK_TURN}, 1, 0)
        seen = struct.unpack("hhqqi4x", fcntl.fcntl(file, {F_OFD_GETLK}, wanted))
    return seen[0] != fcntl.F_UNLCK
def sleeps(thread):
    with open(f"/proc/self/task/{{thread}}/wchan") as file:
        return "nanosleep" in file.read()
def beside(work):
    def run():
        use(0)
        work()
    thread = threading.Thread(target=run)
    thread.start()
    return thread
def allocate():
    assert library.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(64 * MIB)) == 0
"""
)


def test_a_graph_without_code_takes_none(card_host: Host, grants: Grants) -> None:
    card_host.python(
        _BEGIN
        + """
graph, executable = scratch(10 * MIB), ctypes.c_void_p()
with slow(cuMemAlloc_v2=300, cuGraphInstantiateWithFlags=900):
    thread = beside(allocate)
    until(lambda: charged() == CONTEXT + 64 * MIB)
    assert library.cuGraphInstantiateWithFlags(
        ctypes.byref(executable), ctypes.c_void_p(int(graph)), ctypes.c_ulonglong(0)) == 0
    thread.join()
exact(CONTEXT + 64 * MIB)
with slow(cuMemAlloc_v2=300, cuGraphLaunch=900):
    thread = beside(allocate)
    until(lambda: charged() == CONTEXT + 128 * MIB)
    assert library.cuGraphLaunch(executable, None) == 0
    thread.join()
exact(CONTEXT + 138 * MIB)
""",
        grants.make(2 * GIB),
    )


def test_a_graph_that_was_trimmed_while_it_was_launched_reserves_anew(
    card_host: Host, grants: Grants
) -> None:
    card_host.python(
        _BEGIN
        + """
with_code, _ = graph_of(entry(load(2)))
graph = scratch(64 * MIB, graph=with_code)
executable = instantiate(graph)
assert launch(executable) == OK
must(d.cuDeviceGraphMemTrim(0))
exact()
before = charged()
with slow(LAUNCH=600):
    thread = beside(lambda: library.cuGraphLaunch(ctypes.c_void_p(int(executable)), None))
    until(lambda: graph_bytes() == 64 * MIB)
    until(lambda: d.cuDeviceGraphMemTrim(0)[0] == OK and graph_bytes() == 0)
    thread.join()
must(d.cuCtxSynchronize())
must(d.cuMemAlloc(2048 * MIB - before - 32 * MIB))
exact()
assert launch(executable) == OOM
exact()
""",
        grants.make(2 * GIB),
    )


@pytest.mark.parametrize("ends_first", [False, True])
def test_a_context_beside_a_load_is_charged_what_it_took(
    card_host: Host, grants: Grants, ends_first: bool
) -> None:
    """As long as it is there, and no longer; the load is charged nothing of it."""
    card_host.python(
        _BEGIN
        + f"""
function = entry(load(20))
other = must(d.cuCtxCreate(None, 0, 0))
if not {ends_first}:
    must(d.cuCtxDestroy(other))
use(0)
begun = charged()
exact()
with slow(cuFuncLoad=900):
    thread = beside(lambda: library.cuFuncLoad(ctypes.c_void_p(int(function))))
    until(turn_is_taken)
    if {ends_first}:
        must(d.cuCtxDestroy(other))
    else:
        other = must(d.cuCtxCreate(None, 0, 0))
    exact()
    thread.join()
exact(begun + 20 * MIB + ({-1 if ends_first else 1}) * CONTEXT)
if not {ends_first}:
    must(d.cuCtxDestroy(other))
exact(CONTEXT + 20 * MIB)
""",
        grants.make(2 * GIB),
    )


def test_a_thread_that_ended_inside_a_load_leaves_nothing_measured_since_then(
    card_host: Host, grants: Grants
) -> None:
    """A neighbour's allocation between two loads of ours is not the second one's."""
    theirs = grants.make(GIB)
    card_host.python(
        _BEGIN
        + f"""
import _thread, subprocess, sys
os.environ["CUDA_MODULE_LOADING"] = "EAGER"
NEIGHBOUR = '''
from cuda.bindings import driver as d
d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
assert int(d.cuMemAlloc(100 << 20)[0]) == 0
print("ready", flush=True); input()
'''
libc = ctypes.CDLL(None)
libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.signal(12, ctypes.cast(libc.pthread_exit, ctypes.c_void_p))
begun = []
def end_inside():
    use(0)
    begun.append(_thread.get_native_id())
    library.cuModuleLoadData(ctypes.byref(ctypes.c_void_p()), text(1))
with slow(cuModuleLoadData=9000):
    _thread.start_new_thread(end_inside, ())
    until(lambda: begun and sleeps(begun[0]))
    libc.tgkill(os.getpid(), begun[0], 12)
    until(lambda: not os.path.exists(f"/proc/self/task/{{begun[0]}}"))
neighbour = subprocess.Popen(
    [sys.executable, "-c", NEIGHBOUR], env={{**os.environ, "GPUSLICE_DIR": {str(theirs)!r}}},
    stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert neighbour.stdout.readline() == b"ready\\n"
before = charged()
load(2)
after = charged()
neighbour.communicate(b"\\n")
assert after == before + 2 * MIB, (after - before) / MIB
os._exit(0)
""",
        grants.make(2 * GIB),
    )


def test_loads_of_two_contexts_at_once_are_each_charged_to_their_own(
    card_host: Host, grants: Grants
) -> None:
    """What the one context took does not go from the books with the other."""
    card_host.python(
        _BEGIN
        + """
os.environ["CUDA_MODULE_LOADING"] = "EAGER"
def load_many(modules, context):
    library.cuCtxSetCurrent(ctypes.c_void_p(int(context)))
    both.wait()
    for module in modules:
        assert library.cuModuleLoadData(ctypes.byref(module), text(1)) == 0
first, both = must(d.cuCtxGetCurrent()), threading.Barrier(2)
for _ in range(8):
    second = must(d.cuCtxCreate(None, 0, 0))
    here, there = [[ctypes.c_void_p() for _ in range(200)] for _ in range(2)]
    threads = [threading.Thread(target=load_many, args=one)
               for one in ((here, first), (there, second))]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    must(d.cuCtxDestroy(second))
    use(0)
    assert held() <= charged(), ((held() - charged()) / MIB, "are not charged")
    for module in here:
        must(d.cuModuleUnload(d.CUmodule(module.value)))
""",
        grants.make(2 * GIB),
    )


def test_what_is_of_no_context_in_particular_goes_with_the_last_one(
    card_host: Host, grants: Grants
) -> None:
    """Loads of two contexts that take longer than one waits for the other: nobody can tell whose
    what was found is, as long as there is a context that may have it."""
    card_host.python(
        _BEGIN
        + """
os.environ["CUDA_MODULE_LOADING"] = "EAGER"
def load_in(context):
    library.cuCtxSetCurrent(ctypes.c_void_p(int(context)))
    both.wait()
    assert library.cuModuleLoadData(ctypes.byref(ctypes.c_void_p()), text(8)) == 0
both = threading.Barrier(2)
second, third = [must(d.cuCtxCreate(None, 0, 0)) for _ in range(2)]
with slow(cuModuleLoadData=2500):
    threads = [threading.Thread(target=load_in, args=(one,)) for one in (second, third)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
for one in (second, third): must(d.cuCtxDestroy(one))
assert charged() > CONTEXT and held() == CONTEXT, (charged() / MIB, held() / MIB)
must(d.cuDevicePrimaryCtxReset(0))
assert charged() == held() == 0, (charged(), held())
""",
        grants.make(2 * GIB),
    )


def test_a_context_that_ends_as_a_free_of_its_memory_begins_to_wait(
    card_host: Host, grants: Grants
) -> None:
    card_host.python(
        _BEGIN
        + """
HOUR = text(0).replace(b".visible", b"// simgpu: duration_ns=3600000000000\\n.visible", 1)
context, stream = must(d.cuCtxCreate(None, 0, 0)), must(d.cuStreamCreate(1))
address = must(d.cuMemAlloc(64 * MIB))
assert run(entry(must(d.cuModuleLoadData(HOUR))), stream) == OK
def free():
    library.cuCtxSetCurrent(ctypes.c_void_p(int(context)))
    library.cuMemFreeAsync(ctypes.c_uint64(int(address)), ctypes.c_void_p(int(stream)))
with slow(cuEventQuery=3000):
    thread = threading.Thread(target=free)
    thread.start()
    until(lambda: sleeps(thread.native_id))
    must(d.cuCtxDestroy(context))
    thread.join()
use(0)
exact(CONTEXT)
""",
        grants.make(2 * GIB),
    )


def test_a_free_that_is_refused_when_its_address_was_given_again(
    card_host: Host, grants: Grants
) -> None:
    """Another thread freed it first: charged is who has the address now, and nobody else."""
    card_host.python(
        _BEGIN
        + """
address = must(d.cuMemAlloc(64 * MIB))
with slow(cuMemFree_v2=6000):
    assert control(op="fail", card=0, call="cuMemFree_v2", code=1, count=1)["ok"]
    thread = beside(lambda: library.cuMemFree_v2(ctypes.c_uint64(int(address))))
    until(lambda: sleeps(thread.native_id))
    again = address
    def allocate_anew():
        global again
        must(d.cuMemFreeAsync(again, 0))
        must(d.cuStreamSynchronize(0))
        again = must(d.cuMemAlloc(64 * MIB))
        return int(again) == int(address)
    until(allocate_anew, pause=0)
    thread.join()
exact(CONTEXT + 64 * MIB)
must(d.cuMemFree(again))
exact(CONTEXT)
""",
        grants.make(2 * GIB),
    )
