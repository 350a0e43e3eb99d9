"""The library's cost, in figures that hold on a busy machine. `python -m bench shim` has times."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import starts
from gpuslice.contract import names
from tests.shim.conftest import GIB, MIB, Grants, Host, null_grant
from tests.shim.drivers import SOURCES, build
from tests.shim.exact import CODE
from tests.shim.region.core import Box
from tests.support import ROOT, run

pytestmark = [pytest.mark.sim, pytest.mark.shipped]

_HELLO = '#include <stdio.h>\nint main(void) { return puts("hello") < 0; }\n'
_BARE = {"PATH": os.environ["PATH"]}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "grant"
    made.mkdir()
    return null_grant(made, 8 * GIB)


def _without_cuda(kind: str, hello: Path) -> Sequence[str | Path]:
    if kind == "python":
        return [sys.executable, "-c", "import ctypes, ssl, subprocess; print('hello')"]
    flags = ["-static"] if kind == "static" else []
    build(hello, _HELLO, *flags, compiler="musl-gcc" if kind == "musl" else "gcc")
    if kind == "setuid":
        os.chown(hello, 65534, -1)
        hello.chmod(0o755 | stat.S_ISUID)
    return [hello]


@pytest.mark.parametrize("kind", ["static", "setuid", "musl", "python"])
def test_row_34_programs_without_cuda(
    library: Path, tmp_path: Path, directory: Path, kind: str
) -> None:
    """No driver exists on disk. Nothing is printed or changed, even with a broken grant."""
    if kind == "setuid" and os.geteuid() != 0:
        pytest.skip("to make a program of another user needs root")
    if kind == "musl" and shutil.which("musl-gcc") is None:
        missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        missing("musl-gcc is not installed (make setup installs musl-tools)")
    command = _without_cuda(kind, tmp_path / "hello")
    under = {**_BARE, "LD_PRELOAD": str(library), names.ENV_DIR: str(directory)}
    before = (directory / names.FILE_REGION).read_bytes()

    def says_hello() -> bool:
        done = run(*command, env=under)
        return (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")

    assert says_hello()
    assert (directory / names.FILE_REGION).read_bytes() == before
    (directory / names.FILE_GRANT).write_text("not a grant")
    assert says_hello()


def test_row_34_nothing_large_is_mapped(library: Path, directory: Path) -> None:
    """A program without CUDA maps only the library, and neither grant nor region."""

    def maps(environment: dict[str, str]) -> tuple[int, str]:
        """Return the mappings' total size, and the list of mappings."""
        listed = subprocess.check_output(["cat", "/proc/self/maps"], env=environment, text=True)
        ranges = [line.split()[0].split("-") for line in listed.splitlines()]
        return sum(int(end, 16) - int(start, 16) for start, end in ranges), listed

    size, ours = maps({**_BARE, "LD_PRELOAD": str(library), names.ENV_DIR: str(directory)})
    extra = size - maps(_BARE)[0]
    assert f" {library}\n" in ours
    assert 0 < extra < MIB, extra
    assert str(directory) not in ours


_ALLOCATES = """
import ctypes, os, sys
cuda, byref = ctypes.CDLL("libcuda.so.1"), ctypes.byref
def call(name, *arguments):
    assert cuda[name](*arguments) == 0, name
context, ordered = ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", byref(context), 0)
call("cuCtxSetCurrent", context)
live = [ctypes.c_uint64() for _ in range(LIVE)]
for i, each in enumerate(live):
    call("cuMemAlloc_v2", byref(each), ctypes.c_size_t(512 + i % 8 * 512))
for round in range(int(sys.argv[1])):
    victim, size = live[round * 7919 % LIVE], ctypes.c_size_t(512 + round % 8 * 512)
    call("cuMemFree_v2", victim)
    call("cuMemAlloc_v2", byref(victim), size)
    call("cuMemAllocAsync", byref(ordered), size, None)
    call("cuMemFreeAsync", ordered, None)
    call("cuLaunchKernel", victim, 1, 1, 1, 1, 1, 1, 0, None, None, None)
os._exit(0)
"""
# A training program's steps: first launches, launches, queries, and changes of a graph.
_TRAINS = f"""{CODE}
import sys
A = d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
entries = [f"e{{i}}" for i in range(400)]
loaded = must(d.cuLibraryLoadData(text(1, entries=entries), [], [], 0, [], [], 0))
kernels = [must(d.cuLibraryGetKernel(loaded, name.encode())) for name in entries]
first = kernel_params(must(d.cuKernelGetFunction(kernels[0])))
graph = must(d.cuGraphCreate(0))
node = must(d.cuGraphAddKernelNode(graph, None, 0, first))
executable = must(d.cuGraphInstantiate(graph, 0))
for round in range(int(sys.argv[1])):
    function = must(d.cuKernelGetFunction(kernels[round]))
    must(d.cuKernelSetAttribute(A, 1024, kernels[round], 0))
    assert run(function) == run(function) == OK
    must(d.cuGraphExecKernelNodeSetParams(executable, node, first))
    must(d.cuGraphLaunch(executable, 0))
must(d.cuCtxSynchronize())
os._exit(0)
"""


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("count") / "count", SOURCES / "count_system_calls.c")


def _more_calls(host: Host, counter: Path, program: str, grant: Path) -> int:
    """Return how many more system calls 290 rounds make with the library than without it."""
    command = [str(counter), sys.executable, "-c", program]
    many, few, bare_many, bare_few = (
        int(host.run([*command, rounds], grant, preload=preload).stdout)
        for preload in (True, False)
        for rounds in ("300", "10")
    )
    return (many - few) - (bare_many - bare_few)


@pytest.mark.parametrize("live", [1, 200_000])
def test_row_36_the_hot_path_makes_no_system_call(
    null_host: Host, counter: Path, directory: Path, live: int
) -> None:
    program = _ALLOCATES.replace("LIVE", str(live))
    assert _more_calls(null_host, counter, program, directory) < 10


def test_row_36_launches_first_launches_and_graphs_make_no_system_call(
    host: Host, grants: Grants, counter: Path
) -> None:
    """The allowance is for the driver, which makes a system call now and then."""
    assert _more_calls(host, counter, _TRAINS, grants.make(2 * GIB)) < 10


_COUNTED_DRIVER = """
#define PLAIN __attribute__((no_instrument_function))
static unsigned long long calls;
PLAIN unsigned long long driver_calls(void) { return calls; }
PLAIN void __cyg_profile_func_enter(void *function, void *caller) { calls++; }
PLAIN void __cyg_profile_func_exit(void *function, void *caller) {}
"""
_CALLS = {
    "pair": "pair()",
    "report": "info()",
    "synchronization": 'call("cuStreamSynchronize", None)',
    "query": 'call("cuEventQuery", ctypes.c_void_p(1))',
}
_COUNTS = """
import ctypes
cuda, byref, size = ctypes.CDLL("libcuda.so.1"), ctypes.byref, ctypes.c_size_t
cuda.driver_calls.restype = ctypes.c_uint64
def call(name, *arguments):
    assert cuda[name](*arguments) == 0, name
address, kept, free, total = ctypes.c_uint64(), ctypes.c_uint64(), size(), size()
def pair():
    call("cuMemAllocAsync", byref(address), size(4096), None)
    call("cuMemFreeAsync", address, None)
def info():
    call("cuMemGetInfo_v2", byref(free), byref(total))
assert cuda.cuMemGetInfo_v2(byref(free), byref(total)) != 0, "no context is current"
context = ctypes.c_void_p()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemAllocAsync", byref(kept), size(4096), None)
for _ in range(100):
    pair()
before = cuda.driver_calls()
for _ in range(640):
    CALL
print(cuda.driver_calls() - before)
call("cuCtxSetCurrent", None)
assert cuda.cuMemGetInfo_v2(byref(free), byref(total)) == 201
"""


@pytest.fixture(scope="module")
def counted_host(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Host:
    """The null driver, which here counts the functions that run in it."""
    directory = tmp_path_factory.mktemp("counted")
    source = ROOT / "simgpu" / "src"
    parts = [source / "null" / f"null_{part}.c" for part in ("driver", "memory", "pool")]
    flags = [f"-I{source}", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1"]
    driver = build(
        directory / "driver.so",
        _COUNTED_DRIVER,
        "-x", "c", "-finstrument-functions", *parts, *flags,
    )  # fmt: skip
    driver.rename(directory / "libcuda.so.1")
    return Host(library, directory)


@pytest.mark.parametrize("name", _CALLS)
def test_pool_calls_and_reports_make_no_driver_call_of_the_library(
    counted_host: Host, directory: Path, name: str
) -> None:
    """One reading in 63 calls is allowed. It runs four functions of the null driver."""
    program = _COUNTS.replace("CALL", _CALLS[name])
    ours, bare = (
        int(counted_host.python(program, directory, preload=preload).stdout)
        for preload in (True, False)
    )
    assert ours - bare <= 11 * 4, (ours, bare)


def test_row_37_a_start_costs_a_bounded_number_of_system_calls(
    null_host: Host, tmp_path: Path, counter: Path, directory: Path
) -> None:
    """A starting process checks each slot once, even if other processes start meanwhile."""
    source = "int cuInit(unsigned int);\nint main(void) { return cuInit(0); }\n"
    driver = (f"-L{null_host.driver_dir}", "-l:libcuda.so.1")
    program = build(tmp_path / "program", source, *driver)
    ours, bare = (
        int(null_host.run([counter, program], directory, preload=preload).stdout)
        for preload in (True, False)
    )
    assert ours - bare < 80


def test_row_37_three_hundred_at_once_all_start(
    null_host: Host, build_dir: Path, directory: Path
) -> None:
    """All processes allocate, and stay until the last one has. After their exit, the use is 0."""
    environment = null_host.environment(directory)
    starts.many(build_dir / "bin" / "bench-cuda-start", environment, 300)
    box = Box(directory, build_dir / "bin" / "vgpu-core-test")
    assert len(box.slots()) >= 300
    assert box.use().refused_count == 0
