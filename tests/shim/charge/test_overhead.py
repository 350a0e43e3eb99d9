"""The driver's own memory: measured from outside, kept in the grant, deducted from the limit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuslice.contract.overhead import WINDOW
from gpuslice.gpu import answers
from gpuslice.gpu.account import Account
from shim import region
from shim.measurement import Measurement
from tests.shim.clients import NVML
from tests.shim.conftest import CONTEXT_BYTES, GIB, GPUS, MIB, Grants, Host
from tests.shim.exact import CODE, GRAPHS, POOLS

pytestmark = pytest.mark.sim

_UUID = GPUS[0][0]
_ASK = """
import json, pynvml
from gpuslice.gpu import processes
pynvml.nvmlInit()
print(json.dumps(processes.query()))
"""
_LIST = f"""{NVML}
for each in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu(0)):
    print(each.pid, each.usedGpuMemory)
"""


def _ask(host: Host) -> answers.Usage:
    """Return NVML's figures, queried in a process of its own, as the node agent does."""
    found = json.loads(host.python(_ASK, preload=False).stdout)
    return {uuid: answers.by_pid(of_gpu) for uuid, of_gpu in found.items()}


def _held_bytes(host: Host, pid: int) -> int | None:
    return (_ask(host)[_UUID] or {})[pid]


def _say(directory: Path, overhead_bytes: int) -> None:
    with Account(directory) as account:
        account.write_overheads({_UUID: overhead_bytes})


def test_the_overhead_reduces_the_limit_at_once(host: Host, grants: Grants) -> None:
    directory = grants.make(GIB)
    with host.serving(CODE, directory) as program:
        program.do("assert must(d.cuMemGetInfo()) == (GIB, GIB)")
        _say(directory, 200 * MIB)
        program.do("assert must(d.cuMemGetInfo()) == (824 * MIB, GIB)")
        program.do("assert d.cuMemAlloc(826 * MIB)[0] == OOM")
        program.do("kept = must(d.cuMemAlloc(824 * MIB))")
        assert region.status(directory)[0].used_bytes == GIB
        _say(directory, 0)
        program.do("more = must(d.cuMemAlloc(200 * MIB))")
        _say(directory, 2 * GIB)
        program.do("assert must(d.cuMemGetInfo()) == (0, GIB)")
        program.do("must(d.cuMemFree(kept)); assert d.cuMemAlloc(2 * MIB)[0] == OOM")


def test_code_is_never_refused(gpu_host: Host, grants: Grants) -> None:
    """Loads, first launches and graphs succeed even beyond the limit, and take their memory."""
    directory = grants.make(GIB)
    with gpu_host.serving(GRAPHS + CODE, directory) as program:
        program.do(f"must(d.cuMemAlloc({GIB - CONTEXT_BYTES}))")
        _say(directory, 100 * MIB)
        program.do("assert run(entry(load(40, local_bytes=1024))) == OK")
        program.do("graph = must(d.cuGraphCreate(0))")
        program.do("must(d.cuGraphAddKernelNode(graph, None, 0, kernel_params(entry(load(20)))))")
        program.do("executable = instantiate(graph); assert launch(executable) == OK")
        program.do("must(d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_PRINTF_FIFO_SIZE, 64 * MIB))")
        program.do("assert d.cuMemAlloc(2 * MIB)[0] == OOM")


def test_the_overhead_is_the_drivers_memory_after_three_samples(
    gpu_host: Host, grants: Grants
) -> None:
    """A context's charge includes the grant's `code_bytes`. Code beyond that is overhead."""
    directory = grants.make(2 * GIB, code_bytes=64 * MIB)
    measurement = Measurement(directory, lambda: _ask(gpu_host))

    def measured_mib() -> list[float]:
        return [(measurement.sample()[_UUID] or 0) / MIB for _ in range(WINDOW)]

    with gpu_host.serving(CODE, directory) as program:
        program.do("must(d.cuMemAlloc(512 * MIB))")
        for mib, overheads in ((40, [0, 0, 0]), (124, [0, 0, 100]), (50, [100, 100, 150])):
            program.do(f"assert run(entry(load({mib}))) == OK")
            assert measured_mib() == overheads
        assert region.status(directory)[0].used_bytes == CONTEXT_BYTES + 726 * MIB
        program.do("assert must(d.cuMemGetInfo())[0] == 2 * GIB - 1026 * MIB")
    assert measured_mib() == [0, 0, 0], "what has exited holds nothing"


def test_a_float_hides_no_overhead(gpu_host: Host, grants: Grants) -> None:
    """A process with a float fills to the limit, and then holds no more than that."""
    directory = grants.make(3 * GIB)
    measurement = Measurement(directory, lambda: _ask(gpu_host))
    with gpu_host.serving(POOLS + CODE, directory) as program:
        program.do("assert run(entry(load(100))) == OK; keep(default, 2**64 - 1)")
        program.do("must(d.cuMemAllocAsync(MIB, 0))")
        program.do("for _ in range(70): drop(must(d.cuMemAllocAsync(MIB, 0)))")
        program.do("sync()")
        overheads = [measurement.sample()[_UUID] for _ in range(WINDOW)]
        held_bytes = CONTEXT_BYTES + 132 * MIB
        assert _held_bytes(gpu_host, program.pid) == held_bytes and overheads[-1] == 100 * MIB
        assert region.status(directory)[0].used_bytes == held_bytes + 64 * MIB
        assert region.holders(directory)[0].bytes[0] == held_bytes - 100 * MIB
        listed = gpu_host.python(_LIST, directory).stdout
        assert listed == f"{program.pid} {held_bytes - 100 * MIB}\n"
        program.do("must(d.cuMemAlloc(must(d.cuMemGetInfo())[0]))")
        assert _held_bytes(gpu_host, program.pid) == 3 * GIB
        assert [measurement.sample()[_UUID] for _ in range(WINDOW)] == [100 * MIB] * WINDOW


def test_managed_memory_may_exceed_the_limit_where_the_grant_allows_it(
    host: Host, grants: Grants
) -> None:
    directory = grants.make(GIB, managed_free=True)
    with host.serving(CODE, directory) as program:
        program.do("address = must(d.cuMemAllocManaged(2 * GIB, 1))")
        program.do("assert must(d.cuMemGetInfo())[1] == GIB and charged() == 0")
        program.do("must(d.cuMemAlloc(GIB)); must(d.cuMemFree(address))")
        assert region.status(directory)[0].used_bytes == GIB
