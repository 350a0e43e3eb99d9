"""NVML reports the limit as a GPU's memory, and lists only the container's processes."""

from __future__ import annotations

import re
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.shim.clients import CUDA, NVML
from tests.shim.conftest import GIB, GPUS, MIB, Grants, Host
from tests.talking import Talk

pytestmark = pytest.mark.sim

# Print every list of processes that NVML has and the library replaces, as (kind, answer).
_EVERY_WAY = f"""{NVML}
import ctypes
from pynvml import *
library = ctypes.CDLL("libnvidia-ml.so.1")
def say(kind, function, *arguments):
    try:
        print(kind, function(*arguments))
    except NVMLError as error:
        print(kind, type(error).__name__)
def pids(rows):
    return sorted((row.pid, row.usedGpuMemory) for row in rows)
def older(name, size):
    # Query as NVML's protocol requires: first the number of rows, then the rows of `size` bytes.
    count = ctypes.c_uint(0)
    said = library[name](gpu(0), ctypes.byref(count), None)
    assert said == (NVML_ERROR_INSUFFICIENT_SIZE if count.value else 0), said
    rows = (ctypes.c_uint64 * 64)()
    assert library[name](gpu(0), ctypes.byref(count), rows) == 0
    words = size // 8
    return sorted((rows[i * words] & 0xffffffff, rows[i * words + 1]) for i in range(count.value))
for index in range(nvmlDeviceGetCount()):
    print("GPU", index)
    say("compute", lambda: pids(nvmlDeviceGetComputeRunningProcesses_v3(gpu(index))))
    say("detail", lambda: pids(
        nvmlDeviceGetRunningProcessDetailList(gpu(index), nvmlProcessDetailList_v1, 0)))
    say("utilization", lambda: nvmlDeviceGetProcessUtilization(gpu(index), 0)[0].pid)
    say("utilizations", lambda: nvmlDeviceGetProcessesUtilizationInfo(gpu(index), 0)[0].pid)
    say("graphics", nvmlDeviceGetGraphicsRunningProcesses, gpu(index))
    print("load", 0 <= nvmlDeviceGetUtilizationRates(gpu(index)).gpu <= 100)
print("oldest", older("nvmlDeviceGetComputeRunningProcesses", 16))
print("older", older("nvmlDeviceGetComputeRunningProcesses_v2", 24))
"""


def holding(host: Host, size_bytes: int, directory: Path | None) -> AbstractContextManager[Talk]:
    """Start a process that holds memory of GPU 0. With a grant, it runs under the library."""
    program = f"{CUDA}must(d.cuMemAlloc({size_bytes}))"
    return host.serving(program, directory, preload=directory is not None)


def test_row_30_only_own_processes_are_listed(host: Host, grants: Grants) -> None:
    inside, outside = grants.make(2 * GIB), grants.make(2 * GIB)
    with holding(host, GIB, inside) as ours, holding(host, 512 * MIB, outside) as theirs:
        bare = host.python(_EVERY_WAY, preload=False).stdout
        assert bare.count(str(theirs.pid)) >= 4 and f"({theirs.pid}, " in bare
        said = host.python(_EVERY_WAY, inside).stdout
    held = re.search(rf"^compute (\[\({ours.pid}, (\d+)\)\])$", said, re.MULTILINE)
    assert held and int(held[2]) >= GIB
    rest = [f"{each} NVMLError_NotFound" for each in ("utilization", "utilizations")]
    rest += ["graphics []", "load True"]
    lists = [f"{kind} {held[1]}" for kind in ("compute", "detail", "oldest", "older")]
    nothing = ["compute []", "detail []"]
    wanted = ["GPU 0", *lists[:2], *rest, "GPU 1", *nothing, *rest, *lists[2:]]
    assert said.splitlines() == wanted


def test_a_list_that_does_not_fit_returns_its_length(host: Host, grants: Grants) -> None:
    directory = grants.make(2 * GIB)
    program = f"""{NVML}
import ctypes
library = ctypes.CDLL("libnvidia-ml.so.1")
for name, size in (("", 16), ("_v2", 24), ("_v3", 24)):
    ask = library["nvmlDeviceGetComputeRunningProcesses" + name]
    for room, code in ((1, 7), (5, 0)):
        rows, count = (ctypes.c_ubyte * 256)(*[0xee] * 256), ctypes.c_uint(room)
        assert (ask(gpu(0), ctypes.byref(count), rows), count.value) == (code, 2)
        written = min(room, 2) * size
        assert bytes(rows[written:]) == b"\\xee" * (256 - written), "no byte beyond the rows"
    count = ctypes.c_uint(0)
    assert (ask(gpu(1), ctypes.byref(count), rows), count.value) == (0, 0)
    print(ask(None, ctypes.byref(count), rows), ask(gpu(0), None, rows),
          ask(gpu(0), ctypes.byref(ctypes.c_uint(4)), None))
"""
    with holding(host, GIB, directory), holding(host, MIB, directory):
        assert host.python(program, directory).stdout == "2 2 2\n" * 3


def test_a_process_of_another_namespace_is_left_out(host: Host, grants: Grants) -> None:
    """Containers may share a grant. All their memory is charged to it, but NVML lists only the
    processes of the caller's PID namespace."""
    directory = grants.make(2 * GIB)
    look = f"""{NVML}
print(pynvml.nvmlDeviceGetComputeRunningProcesses(gpu(0)))
print(pynvml.nvmlDeviceGetMemoryInfo(gpu(0)).used >= 2**30)
"""
    with holding(host, GIB, directory):
        unshared = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
        done = host.run([*unshared, sys.executable, "-c", look], directory)
    assert done.stdout == "[]\nTrue\n"


def test_bar1_shows_no_more_than_we_hold(host: Host, grants: Grants) -> None:
    inside, outside = grants.make(2 * GIB), grants.make(2 * GIB)
    program = f"""{NVML}
for index in range(2):
    bar1 = pynvml.nvmlDeviceGetBAR1MemoryInfo(gpu(index))
    assert bar1.bar1Free == bar1.bar1Total - bar1.bar1Used
    print(bar1.bar1Total, bar1.bar1Used)
"""
    with holding(host, GIB, outside):
        assert host.python(program, preload=False).stdout.split()[1] == str(2 * MIB)
        assert host.python(program, inside).stdout == f"{GPUS[0][1]} 0\n0 0\n"
        assert host.python(program, outside).stdout == f"{GPUS[0][1]} {2 * MIB}\n0 0\n"
