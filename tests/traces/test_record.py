"""A program is recorded, and the recording is replayed."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support import run
from tests.traces.conftest import Gpu, Loaded
from tests.traces.test_replay import MOST_CHARGE_ERROR_BYTES
from traces.replay import load
from traces.trace import Call, read

pytestmark = [pytest.mark.sim, pytest.mark.shipped]
_PROGRAM: Final = """
import os, signal, sys, threading
from cuda.bindings import driver as d
def must(answer):
    assert answer[0] == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]
MIB = 2**20
must(d.cuInit(0))
device = must(d.cuDeviceGet(0))
must(d.cuDeviceTotalMem(device))
context = must(d.cuDevicePrimaryCtxRetain(device))
must(d.cuCtxSetCurrent(context))
CODE = b".version 6.0\\n.target sm_50\\n.address_size 64\\n.visible .entry secret() { ret; }\\n\\0"
module = must(d.cuModuleLoadData(CODE))
kernel = must(d.cuModuleGetFunction(module, b"secret"))
stream = must(d.cuStreamCreate(0))
def work():
    must(d.cuCtxSetCurrent(context))
    for mib in range(1, 20):
        address = must(d.cuMemAlloc(mib * MIB))
        must(d.cuMemsetD8Async(address, 1, mib * MIB, stream))
        must(d.cuMemcpyHtoD(address, b"secret", 6))
        must(d.cuLaunchKernel(kernel, mib, 1, 1, 32, 1, 1, 0, stream, 0, 0))
        must(d.cuMemFree(address))
threads = [threading.Thread(target=work) for _ in range(3)]
for each in threads:
    each.start()
for each in threads:
    each.join()
pool = must(d.cuDeviceGetDefaultMemPool(device))
threshold = d.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
must(d.cuMemPoolSetAttribute(pool, threshold, d.cuuint64_t(64 * MIB)))
assert int(must(d.cuMemPoolGetAttribute(pool, threshold))) == 64 * MIB
ordered = must(d.cuMemAllocAsync(48 * MIB, stream))
what = d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
must(d.cuPointerGetAttributes(1, [what], ordered))
must(d.cuMemFreeAsync(ordered, stream))
must(d.cuStreamSynchronize(stream))
must(d.cuMemGetInfo())
assert d.cuMemAlloc(2**50)[0] == d.CUresult.CUDA_ERROR_OUT_OF_MEMORY
"""


def recorded(gpu: Gpu, directory: Path, program: str, status: int = 0) -> list[Path]:
    record = (sys.executable, "-m", "traces", "record", "--output", directory)
    done = run(*record, "--", sys.executable, "-c", program, env=gpu)
    assert done.returncode == status, done
    return sorted(directory.glob("*.trace.gz"))


def calls_of(trace: Path) -> list[Call]:
    return [each for each in read(trace).items if isinstance(each, Call)]


def test_a_recorded_program_is_replayed_without_a_difference(gpu: Gpu, tmp_path: Path) -> None:
    (trace,) = recorded(gpu, tmp_path, _PROGRAM)
    it = Loaded(load([trace], tmp_path), tmp_path)
    assert it.recording.calls > 3 * 19 * 5
    assert not it.recording.skipped
    outcome = it.replayed(tmp_path, gpu)
    assert outcome.differences == []
    assert outcome.charge_error_bytes <= MOST_CHARGE_ERROR_BYTES
    assert len({each.thread for each in calls_of(trace)}) == 4
    text = gzip.decompress(trace.read_bytes())
    assert b"secret" not in text, "no code, no names and no memory"
    assert b" cuModuleGetFunction 0 a=& b=0x" in text and b" c=@ > a=0x" in text


def test_each_process_has_a_trace_also_one_that_is_killed(gpu: Gpu, tmp_path: Path) -> None:
    program = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {_PROGRAM!r} + "os.kill(os.getpid(), signal.SIGKILL)"])
{_PROGRAM}
raise SystemExit(3)
"""
    one, two = traces = recorded(gpu, tmp_path, program, status=3)
    assert len(calls_of(one)) == len(calls_of(two)) > 200
    ends = [b"\n# end us=" in gzip.decompress(path.read_bytes()) for path in traces]
    assert sorted(ends) == [False, True]
