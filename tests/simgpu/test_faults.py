"""Faults that are set for a driver function: a number of failures, or a delay, on one GPU."""

from __future__ import annotations

import pytest

from tests.simgpu.host import Host, simgpu

_PROGRAM = """
import ctypes, subprocess, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), GPU) == 0
assert cuda.cuCtxSetCurrent(context) == 0
def alloc():
    return cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20))
start = time.monotonic()
print([alloc() for _ in range(4)], cuda.cuMemFree_v2(address), cuda.cuMemFree_v2(address))
"""
_ARM = """
words = "-m simgpu fault --gpu 0 fail cuMemAlloc_v2 719 1".split()
subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
print(alloc(), alloc())
"""


def printed(host: Host, gpu: int, more: str = "") -> list[str]:
    return host.python(f"GPU = {gpu}\n{_PROGRAM}{more}").splitlines()


@pytest.mark.sim
def test_a_call_fails_by_its_name_on_its_gpu(driver_host: Host) -> None:
    driver_host.fault("fail", "cuMemAlloc_v2", "2", "3", gpu=1)
    driver_host.fault("fail", "cuMemFree_v2", "214", "1", gpu=1)
    assert printed(driver_host, 0) == ["[0, 0, 0, 0] 0 1"]
    assert printed(driver_host, 1) == ["[2, 2, 2, 0] 214 0"]
    assert printed(driver_host, 1) == ["[0, 0, 0, 0] 0 1"]


@pytest.mark.sim
def test_a_fault_reaches_a_program_that_runs(driver_host: Host) -> None:
    assert printed(driver_host, 0, _ARM)[1] == "719 0"


@pytest.mark.sim
def test_a_call_is_late_by_its_name(driver_host: Host) -> None:
    driver_host.fault("latency", "cuMemAlloc_v2", str(5 * 10**8))
    assert float(printed(driver_host, 0, "print(time.monotonic() - start)")[1]) >= 2


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["fail", "nvmlInit", "2", "1"], "call: invalid value 'nvmlInit': must be an operation or"),
        (["fail", "cuInit", "two", "1"], "code: invalid value 'two': must be 0 to 999"),
        (["latency", "cuInit"], "latency takes CALL NS after it"),
        (["recovery", "now"], "action: invalid value 'now': must be one of none, reset, reboot"),
    ],
)
def test_a_wrong_fault_is_refused(host: Host, words: list[str], reason: str) -> None:
    done = simgpu("fault", "--dir", host.directory, "--gpu", "0", *words)
    assert done.returncode == 1
    assert reason in done.stderr
