"""Memory that the simulated driver itself takes, and frees: contexts, code, stacks, heaps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from simgpu import config
from tests.simgpu.host import Host

pytestmark = pytest.mark.sim

_BEGIN = """
import os
from cuda.bindings import driver as d
MIB = 2**20
def must(answer):
    assert answer[0] == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]
PTX = b'''
.version 8.0
.target sm_80
.address_size 64
// simgpu: local_bytes=4096
.visible .entry deep() { ret; }
.visible .entry flat() { ret; }
'''
THREADS = 108 * 2048
must(d.cuInit(0))
watcher = must(d.cuDevicePrimaryCtxRetain(1))
primary = must(d.cuDevicePrimaryCtxRetain(0))
must(d.cuCtxSetCurrent(primary))
def used():
    free, total = must(d.cuMemGetInfo())
    return total - free
def run(function):
    must(d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
idle = used()
"""


@pytest.fixture
def costly_host(sim_dir: Path, build_dir: Path) -> Iterator[Host]:
    described = sim_dir.parent / "host.toml"
    described.write_text(
        'context_overhead = "300Mi"\nmodule_overhead = "2Mi"\ngranule = "2Mi"\n'
        + "".join(
            f'[[gpu]]\nuuid = "GPU-5e1f0a70-0000-4000-8000-{minor:012x}"\n'
            f'minor = {minor}\nmemory = "4Gi"\npci_bus = {minor + 1}\n'
            for minor in range(2)
        )
    )
    made = Host(sim_dir, ("--config", described), build_dir)
    made.up()
    yield made
    made.down()


def test_a_context_takes_the_hosts_memory_until_it_ends(
    sim_dir: Path, build_dir: Path, tmp_path: Path
) -> None:
    description = tmp_path / "host.toml"
    text = config.DEFAULT_FILE.read_text()
    plain = 'context_host_memory = "0"'
    assert plain in text
    description.write_text(text.replace(plain, 'context_host_memory = "100Mi"'))
    host = Host(sim_dir, ["--config", description], build_dir=build_dir)
    host.up()
    program = (
        _BEGIN.split("watcher")[0]
        + """
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // MIB
before = resident()
contexts = [must(d.cuDevicePrimaryCtxRetain(gpu)) for gpu in (0, 1)]
assert 200 <= resident() - before < 240, (before, resident())
for gpu in (0, 1): must(d.cuDevicePrimaryCtxRelease(gpu))
assert resident() - before < 40, (before, resident())
"""
    )
    host.python(program)
    host.down()


def test_each_context_costs_until_it_ends(costly_host: Host) -> None:
    costly_host.python(
        _BEGIN
        + """
assert idle == 300 * MIB
context = must(d.cuCtxCreate(None, 0, 0))
assert used() == 600 * MIB
must(d.cuCtxDestroy(context))
must(d.cuCtxSetCurrent(primary))
assert used() == 300 * MIB
made = []
while (answer := d.cuCtxCreate(None, 0, 0))[0] == 0:
    made.append(answer[1])
assert (len(made), answer[0]) == (12, d.CUresult.CUDA_ERROR_OUT_OF_MEMORY)
"""
    )


def test_code_is_loaded_at_its_first_use(costly_host: Host) -> None:
    costly_host.python(
        _BEGIN
        + """
module = must(d.cuModuleLoadData(PTX))
flat = must(d.cuModuleGetFunction(module, b"flat"))
assert used() == idle
run(flat)
run(flat)
assert used() - idle == 2 * MIB
must(d.cuModuleUnload(module))
assert used() == idle
"""
    )


def test_a_comment_in_ptx_sets_the_size_of_its_code(costly_host: Host) -> None:
    costly_host.python(
        _BEGIN
        + """
module = must(d.cuModuleLoadData(PTX + b"// simgpu: module_bytes=9000000"))
run(must(d.cuModuleGetFunction(module, b"flat")))
assert used() - idle == 10 * MIB
"""
    )


def test_a_library_is_loaded_into_each_context_that_uses_it(costly_host: Host) -> None:
    costly_host.python(
        _BEGIN
        + """
library = must(d.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))
flat = must(d.cuLibraryGetKernel(library, b"flat"))
assert used() == idle
run(d.CUfunction(int(flat)))
assert used() - idle == 2 * MIB
other = must(d.cuCtxCreate(None, 0, 0))
run(d.CUfunction(int(flat)))
assert used() - idle == 304 * MIB
must(d.cuLibraryUnload(library))
assert used() - idle == 300 * MIB
"""
    )


def test_local_memory_is_for_all_threads_and_stays(costly_host: Host) -> None:
    costly_host.python(
        _BEGIN
        + """
LOCAL = 3
module = must(d.cuModuleLoadData(PTX))
deep, flat = (must(d.cuModuleGetFunction(module, name)) for name in (b"deep", b"flat"))
attribute = d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
assert must(d.cuFuncGetAttribute(attribute, deep)) == 4096
run(flat)
before = used()
run(deep)
assert used() - before == 4096 * THREADS
run(flat)
must(d.cuModuleUnload(module))
assert used() - idle == 4096 * THREADS
"""
    )


def test_limits_cost_what_they_add(costly_host: Host) -> None:
    costly_host.python(
        _BEGIN
        + """
limit = d.CUlimit
STACK, FIFO, HEAP = (limit.CU_LIMIT_STACK_SIZE, limit.CU_LIMIT_PRINTF_FIFO_SIZE,
                     limit.CU_LIMIT_MALLOC_HEAP_SIZE)
must(d.cuCtxSetLimit(STACK, 2048))
assert used() - idle == 2048 * THREADS
must(d.cuCtxSetLimit(STACK, 1024))
must(d.cuCtxSetLimit(FIFO, 33 * MIB))
must(d.cuCtxSetLimit(HEAP, 24 * MIB))
assert used() - idle == (32 + 16) * MIB
for what in (FIFO, HEAP):
    was = must(d.cuCtxGetLimit(what))
    assert d.cuCtxSetLimit(what, 5 << 30)[0] == 2, "no such room"
    assert d.cuCtxSetLimit(STACK, 2**60)[0] == 2
    assert must(d.cuCtxGetLimit(what)) == was
assert used() - idle == (32 + 16) * MIB
must(d.cuCtxSetLimit(FIFO, 1 * MIB))
must(d.cuCtxSetLimit(HEAP, 0))
assert used() == idle
"""
    )
