"""Faults by a call's name: counted down, delayed, and only where they were armed."""

from __future__ import annotations

import pytest

from tests.simgpu.host import Host, simgpu

_PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), int(sys.argv[1])) == 0
assert cuda.cuCtxSetCurrent(context) == 0
def alloc():
    return cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20))
print([alloc() for _ in range(4)], cuda.cuMemFree_v2(address), cuda.cuMemFree_v2(address))
"""


@pytest.mark.sim
def test_a_call_fails_by_its_name_on_its_gpu(driver_host: Host) -> None:
    driver_host.fault("fail", "cuMemAlloc_v2", "2", "3", gpu=1)
    driver_host.fault("fail", "cuMemFree_v2", "214", "1", gpu=1)
    assert driver_host.python(_PROGRAM.replace("sys.argv[1]", "0")) == "[0, 0, 0, 0] 0 1\n"
    assert driver_host.python(_PROGRAM.replace("sys.argv[1]", "1")) == "[2, 2, 2, 0] 214 0\n"
    assert driver_host.python(_PROGRAM.replace("sys.argv[1]", "1")) == "[0, 0, 0, 0] 0 1\n"


@pytest.mark.sim
def test_a_fault_reaches_a_program_that_runs(driver_host: Host) -> None:
    arm = (
        "import subprocess, os\n"
        "def arm(*words):\n"
        "    subprocess.run([sys.executable, '-m', 'simgpu', 'fault', '--gpu', '0', *words],"
        " check=True, stdout=subprocess.DEVNULL)\n"
        "arm('fail', 'cuMemAlloc_v2', '719', '1')\n"
        "print(alloc(), alloc())\n"
    )
    said = driver_host.python(_PROGRAM.replace("sys.argv[1]", "0") + arm)
    assert said.splitlines()[1] == "719 0"


@pytest.mark.sim
def test_a_call_is_late_by_its_name(driver_host: Host) -> None:
    driver_host.fault("latency", "cuMemAlloc_v2", str(10**9))
    timed = _PROGRAM.replace("sys.argv[1]", "0").replace("range(4)", "range(2)")
    code = "import time; start = time.monotonic()\n" + timed
    said = driver_host.python(code + "print(time.monotonic() - start)")
    assert float(said.splitlines()[1]) >= 2


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["fail", "nvmlInit", "2", "1"], "call: invalid value 'nvmlInit': must be an operation or"),
        (["fail", "cuInit", "two", "1"], "code: invalid value 'two': must be 0 to 999"),
        (["latency", "cuInit"], "latency takes CALL NS after it"),
        (["recovery", "now"], "action: invalid value 'now': must be one of none, reset, reboot"),
    ],
)
def test_a_wrong_fault_is_refused(shared_host: Host, words: list[str], reason: str) -> None:
    done = simgpu("fault", "--dir", shared_host.directory, "--gpu", "0", *words)
    assert done.returncode == 1
    assert reason in done.stderr
