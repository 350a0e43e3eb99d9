"""libnvidia-ml.so.1, used through NVIDIA's own Python client."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.simgpu.host import GIB, Host

pytestmark = pytest.mark.sim

UUID_0 = "GPU-5e1f0a70-0000-4000-8000-000000000000"
UUID_1 = "GPU-5e1f0a70-0000-4000-8000-000000000001"

PRELUDE = """
import ctypes, os
from pynvml import *
import pynvml

def code(function, *arguments):
    "The code of a call, 0 where it succeeds."
    try:
        function(*arguments)
    except NVMLError as error:
        return error.value
    return 0
"""

WITH_GPU = "nvmlInit()\nh = nvmlDeviceGetHandleByIndex(0)"
BEFORE_INIT = "lib = ctypes.CDLL('libnvidia-ml.so.1')"


def evaluate(host: Host, body: str, begin: str = WITH_GPU) -> Any:
    """Return what `body` assigns to `out`, in a process of its own."""
    return ast.literal_eval(host.python(f"{PRELUDE}\n{begin}\n{body}\nprint(repr(out))"))


def evaluate_each(host: Host, expressions: Iterable[str]) -> Any:
    """Return the value of each expression, all computed in one process."""
    return evaluate(host, "out = {" + ", ".join(f"{e!r}: {e}" for e in expressions) + "}")


def test_a_gpu_describes_itself(idle_host: Host) -> None:
    expected = {
        "nvmlSystemGetDriverVersion()": "580.65.06",
        "nvmlSystemGetNVMLVersion()": "13.580.65.06",
        "nvmlSystemGetCudaDriverVersion()": 13000,
        "nvmlSystemGetCudaDriverVersion_v2()": 13000,
        "nvmlDeviceGetCount()": 2,
        "nvmlDeviceGetName(h)": "NVIDIA SimGPU-40GB",
        "nvmlDeviceGetUUID(h)": UUID_0,
        "nvmlDeviceGetMinorNumber(h)": 0,
        "nvmlDeviceGetIndex(h)": 0,
        "nvmlDeviceGetPciInfo(h).busId": "00000000:17:00.0",
        "nvmlDeviceGetPciInfo(h).busIdLegacy": "0000:17:00.0",
        "nvmlDeviceGetPciInfo(h).bus": 0x17,
        "nvmlDeviceGetComputeMode(h)": 0,
        "nvmlDeviceGetArchitecture(h)": pynvml.NVML_DEVICE_ARCH_AMPERE,
        "nvmlDeviceGetMigMode(h)": [0, 0],
        "nvmlDeviceGetEnforcedPowerLimit(h)": 400_000,
        "nvmlDeviceGetPowerUsage(h)": 55_000,
        "nvmlDeviceGetTemperature(h, NVML_TEMPERATURE_GPU)": 34,
        "nvmlDeviceGetClockInfo(h, NVML_CLOCK_SM)": 210,
        "nvmlDeviceGetMaxClockInfo(h, NVML_CLOCK_MEM)": 1215,
        "nvmlDeviceGetBAR1MemoryInfo(h).bar1Total": 64 * GIB,
        "nvmlDeviceGetMemoryInfo(h).total": 40 * GIB,
        "nvmlDeviceGetMemoryInfo(h, version=nvmlMemory_v2).free": 40 * GIB,
        "nvmlDeviceGetUtilizationRates(h).gpu": 0,
        "nvmlDeviceGetComputeRunningProcesses(h)": [],
        "nvmlDeviceGetGraphicsRunningProcesses(h)": [],
        "nvmlDeviceGetMPSComputeRunningProcesses(h)": [],
    }
    assert evaluate_each(idle_host, expected) == expected


def test_queries_about_processes_list_those_of_the_whole_host(driver_host: Host) -> None:
    """As on a real host, the list has all processes. libvgpu.so hides those of other containers."""
    details = "nvmlDeviceGetRunningProcessDetailList(h, nvmlProcessDetailList_v1, 0)"
    loads = ("nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo")
    bar1 = "nvmlDeviceGetBAR1MemoryInfo(h).bar1Used"
    nothing = {details: [], bar1: 0}
    nothing |= {f"code({load}, h, 0)": pynvml.NVML_ERROR_NOT_FOUND for load in loads}
    assert evaluate_each(driver_host, nothing) == nothing
    one, _ = driver_host.peer(f"alloc={10 * GIB}")
    two, _ = driver_host.peer(f"alloc={5 * GIB}")
    all_of_them = {
        f"{{d.pid: d.usedGpuMemory for d in {details}}}": {one.pid: 10 * GIB, two.pid: 5 * GIB},
        **{
            f"{{s.pid: s.smUtil for s in {load}(h, 0)}}": {one.pid: 0, two.pid: 0} for load in loads
        },
        bar1: 4 << 20,
    }
    assert evaluate_each(driver_host, all_of_them) == all_of_them


def test_a_gpu_is_found_by_each_of_its_names(idle_host: Host) -> None:
    names = ["00000000:65:00.0", "0000:65:00.0", "65:00.0", "0:65:0.0"]
    handles = [f"nvmlDeviceGetHandleByPciBusId({name!r})" for name in names]
    handles.append(f"nvmlDeviceGetHandleByUUID({UUID_1!r})")
    expected = {f"nvmlDeviceGetMinorNumber({handle})": 1 for handle in handles}
    assert evaluate_each(idle_host, expected) == expected


def test_a_gpu_under_load_shows_it_in_its_readings(driver_host: Host) -> None:
    readings = evaluate(
        driver_host,
        """
import time
from tests.simgpu.programs import gpu_time
gpu_time.begin()
gpu_time.busy(gpu_time.kernel(), 3600 * 10**9)
while nvmlDeviceGetUtilizationRates(h).gpu < 100:
    time.sleep(0.01)
out = (nvmlDeviceGetUtilizationRates(h).gpu, nvmlDeviceGetTemperature(h, 0),
       nvmlDeviceGetPowerUsage(h))
""",
    )
    assert readings == (100, 70, 400_000)


def test_codes_of_refusal(idle_host: Host) -> None:
    short = "pynvml.nvmlLib.nvmlDeviceGetUUID(h, ctypes.create_string_buffer(10), 10)"
    expected = {
        "code(nvmlDeviceGetHandleByIndex, 2)": pynvml.NVML_ERROR_INVALID_ARGUMENT,
        "code(nvmlDeviceGetHandleByUUID, 'GPU-x')": pynvml.NVML_ERROR_NOT_FOUND,
        "code(nvmlDeviceGetHandleByPciBusId, '0:99:0.0')": pynvml.NVML_ERROR_NOT_FOUND,
        "code(nvmlDeviceGetName, None)": pynvml.NVML_ERROR_INVALID_ARGUMENT,
        "code(nvmlDeviceGetMemoryInfo, h, 1)": pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        "code(nvmlDeviceGetTemperature, h, 1)": pynvml.NVML_ERROR_INVALID_ARGUMENT,
        "code(nvmlDeviceGetFanSpeed, h)": pynvml.NVML_ERROR_NOT_SUPPORTED,
        short: pynvml.NVML_ERROR_INSUFFICIENT_SIZE,
        "pynvml.nvmlLib.nvmlDeviceGetMemoryInfo(h, None)": pynvml.NVML_ERROR_INVALID_ARGUMENT,
    }
    assert evaluate_each(idle_host, expected) == expected


def test_before_init_and_after_shutdown(idle_host: Host) -> None:
    codes = evaluate(
        idle_host,
        """
n = ctypes.c_uint()
def ask():
    return [lib.nvmlDeviceGetCount_v2(ctypes.byref(n)), lib.nvmlDeviceGetFanSpeed(None, None)]
out = [*ask(), lib.nvmlShutdown(), lib.nvmlInit_v2(), lib.nvmlInit(), lib.nvmlShutdown(), *ask(),
       lib.nvmlShutdown(), *ask(), lib.nvmlSystemGetCudaDriverVersion(ctypes.byref(n)), n.value]
""",
        BEFORE_INIT,
    )
    assert codes == [1, 1, 0, 0, 0, 0, 0, 3, 0, 1, 1, 1, 2]


def test_one_socket_one_gpu(driver_host: Host, tmp_path: Path) -> None:
    """As in a container, the only injected GPU has index 0, and keeps its minor number."""
    (tmp_path / "gpus").mkdir()
    (tmp_path / "gpus/1.sock").symlink_to(driver_host.socket(1))
    (tmp_path / "gpus/stale.sock").touch()
    found = evaluate(
        driver_host,
        f"""
os.environ["SIMGPU_DIR"] = "{tmp_path}"
nvmlInit()
h = nvmlDeviceGetHandleByIndex(0)
out = (nvmlDeviceGetCount(), nvmlDeviceGetUUID(h), nvmlDeviceGetMinorNumber(h),
       code(nvmlDeviceGetHandleByUUID, {UUID_0!r}))
""",
        BEFORE_INIT,
    )
    assert found == (1, UUID_1, 1, pynvml.NVML_ERROR_NOT_FOUND)


def test_a_lost_gpu(driver_host: Host) -> None:
    driver_host.fault("lose", gpu=1)
    expected = {
        "nvmlDeviceGetCount()": 2,
        "code(nvmlDeviceGetHandleByIndex, 1)": pynvml.NVML_ERROR_GPU_IS_LOST,
        f"code(nvmlDeviceGetHandleByUUID, {UUID_1!r})": pynvml.NVML_ERROR_GPU_IS_LOST,
        "code(nvmlDeviceGetMemoryInfo, h)": 0,
    }
    assert evaluate_each(driver_host, expected) == expected


def test_the_recovery_action_is_the_field_that_a_fault_sets(driver_host: Host) -> None:
    ask = """
def field(number):
    (found,) = nvmlDeviceGetFieldValues(h, [number])
    return found.nvmlReturn, found.valueType, found.value.uiVal
out = field(NVML_FI_DEV_GET_GPU_RECOVERY_ACTION), field(NVML_FI_DEV_RESET_STATUS)[0]
"""

    def is_reported(action: int) -> None:
        expected = (0, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, action)
        assert evaluate(driver_host, ask) == (expected, pynvml.NVML_ERROR_NOT_SUPPORTED)

    is_reported(0)
    driver_host.fault("recovery", "drain-and-reset")
    is_reported(pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET)
    driver_host.fault("recovery", "none")
    is_reported(0)


def test_a_gpu_that_does_not_answer_delays_no_call_about_another(driver_host: Host) -> None:
    """The other GPU is set to answer only after an hour."""
    driver_host.fault("latency", "MEMORY_INFO", str(3600 * 10**9), gpu=1)
    program = """
import threading
entered = threading.Event()
def hang():
    entered.set()
    nvmlDeviceGetHandleByIndex(1)
thread = threading.Thread(target=hang, daemon=True)
thread.start()
entered.wait()
out = [nvmlDeviceGetMemoryInfo(h).total for _ in range(200)][-1], thread.is_alive()
print(repr(out), flush=True)
os._exit(0)
"""
    assert evaluate(driver_host, program) == (40 << 30, True)


def test_a_fork_child_uses_connections_of_its_own(idle_host: Host) -> None:
    """Parent and child query at once. On one connection, they would read each other's answers."""
    out = evaluate(
        idle_host,
        """
child = os.fork()
right = all(
    nvmlDeviceGetMemoryInfo(h).total == 40 << 30 and nvmlDeviceGetUtilizationRates(h).gpu == 0
    for _ in range(200)
)
if child == 0:
    os._exit(0 if right else 1)
out = (right, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
    )
    assert out == (True, 0)
