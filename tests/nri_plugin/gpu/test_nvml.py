"""NVML queries that the simulated driver cannot answer: XID errors, reserved memory, remapped rows.
NVML is a stand-in here."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpuslice.gpu import processes
from nri_plugin.gpu import description, nvml
from nri_plugin.gpu.nvml_process import Line
from tests.support import GIB, until

_LINES: list[dict[str, Any]] = []


class Driver:
    """Two GPUs; handles are addresses, as NVML's are."""

    def __init__(self) -> None:
        self.events: dict[str, list[int]] = {}
        self.unified: set[int] = set()
        self.hangs: dict[int, threading.Event] = {}
        self.recovery: dict[int, int] | None = None
        self.mps: list[object] | None = None
        self.remapped = {0: (0, 0, 0, 0), 1: (0, 0, 0, 0)}
        self.lost: set[int] = set()
        self.starts = 0

    def named(self) -> Mapping[str, Any]:
        return {
            "nvmlInit": self._init,
            "nvmlShutdown": lambda: None,
            "nvmlSystemGetDriverVersion": lambda: "580.1",
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": self._handle,
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle.value - 100}",
            "nvmlDeviceGetName": lambda handle: "NVIDIA H100 80GB HBM3",
            "nvmlDeviceGetMinorNumber": lambda handle: handle.value - 100,
            "nvmlDeviceGetMemoryInfo": self._memory,
            "nvmlDeviceGetMigMode": self._unsupported,
            "nvmlDeviceGetRemappedRows": lambda handle: self.remapped[handle.value - 100],
            "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId="00000000:3B:00.0"),
            "nvmlDeviceGetP2PStatus": self._unsupported,
            "nvmlEventSetCreate": SimpleNamespace,
            "nvmlDeviceRegisterEvents": self._register,
            "nvmlDeviceGetFieldValues": self._fields,
            "nvmlEventSetWait_v2": self._wait,
        }

    def _init(self) -> None:
        self.starts += 1

    def _handle(self, index: int) -> ctypes.c_void_p:
        if index in self.hangs:
            self.hangs[index].wait(60)
        if index in self.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return ctypes.c_void_p(100 + index)

    def _memory(self, handle: Any, version: int = 0) -> SimpleNamespace:
        if handle.value - 100 in self.unified:
            self._unsupported()
        return SimpleNamespace(total=80 * GIB, reserved=GIB if version else None)

    def _unsupported(self, *_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def _register(self, handle: Any, kinds: int, events: Any) -> None:
        events.uuid = f"GPU-{handle.value - 100}"

    def _wait(self, events: Any, timeout_ms: int) -> SimpleNamespace:
        assert timeout_ms == 0
        if not self.events.get(events.uuid):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        return SimpleNamespace(eventData=self.events[events.uuid].pop(0))

    def _fields(self, handle: Any, fields: list[int]) -> list[SimpleNamespace]:
        assert fields == [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        if self.recovery is None:
            code, action = pynvml.NVML_ERROR_NOT_SUPPORTED, 77
        else:
            code, action = pynvml.NVML_SUCCESS, self.recovery.get(handle.value - 100, 0)
        return [SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(uiVal=action))]

    def clients(self, _: object) -> list[object]:
        if self.mps is None:
            self._unsupported()
        return self.mps or []


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    for name, function in driver.named().items():
        monkeypatch.setattr(pynvml, name, function)
    monkeypatch.setattr(processes, "_LISTS", (lambda _: [SimpleNamespace(pid=1, usedGpuMemory=3)],))
    monkeypatch.setattr(processes, "_MPS", driver.clients)
    return driver


def ask(gpus: nvml.Gpus, number: int) -> tuple[Line, dict[int, Line]]:
    """The head and the GPUs' lines."""
    gpus.ask("gpus", number)
    lines = _LINES
    until(lambda: len([x for x in lines if x["request"] == number]) == 3, "both GPUs answer")
    until(lambda: all(each.idle for each in gpus._threads), "the threads are idle")
    mine = [line for line in lines if line["request"] == number]
    head = next(line for line in mine if "index" not in line)
    return head, {line["index"]: line for line in mine if "index" in line}


@pytest.fixture
def gpus(driver: Driver) -> Iterator[nvml.Gpus]:
    _LINES.clear()
    made = nvml.Gpus(lambda text: _LINES.append(json.loads(text)))
    yield made
    for each in (*made._threads, made._board):
        each.end()


def test_memory_is_what_can_be_allocated(gpus: nvml.Gpus) -> None:
    head, lines = ask(gpus, 1)
    assert (head["count"], head["driver"]) == (2, "580.1")
    for line in lines.values():
        gpu = line["gpu"]
        assert (gpu["memory_bytes"], gpu["reserved_bytes"]) == (79 * GIB, GIB)
        assert (gpu["bus_id"], gpu["model"]) == ("0000:3b:00.0", "NVIDIA H100 80GB HBM3")
        assert "problem" not in gpu and "recovery" not in gpu


def test_xid_errors_since_the_last_look(gpus: nvml.Gpus, driver: Driver) -> None:
    assert [line["xids"] for line in ask(gpus, 1)[1].values()] == [[], []]
    driver.events = {"GPU-1": [79], "GPU-0": [13, 48]}
    driver.lost = {1}  # it fell off the bus, and the event still has its name
    lines = ask(gpus, 2)[1]
    assert lines[0]["xids"] == [["GPU-0", 13], ["GPU-0", 48]]
    assert lines[1]["xids"] == [["GPU-1", 79]] and "error" in lines[1]
    driver.events = {"GPU-1": [95]}
    assert ask(gpus, 3)[0]["xids"] == [["GPU-1", 95]], "read before NVML is initialized again"
    driver.lost = set()
    assert [line["xids"] for line in ask(gpus, 4)[1].values()] == [[], []]
    driver.events = {"GPU-0": [13] * 1001}
    counts = [len(ask(gpus, number)[1][0]["xids"]) for number in (5, 6, 7)]
    assert counts == [1000, 1, 0], "so many at most in one answer"


def test_nvml_is_initialised_again_only_while_a_gpu_does_not_answer(
    gpus: nvml.Gpus, driver: Driver
) -> None:
    ask(gpus, 1)
    ask(gpus, 2)
    assert driver.starts == 1
    driver.lost = {0}
    lines = ask(gpus, 3)[1]
    assert lines[0]["error"] == str(pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST))
    assert lines[1]["gpu"]["index"] == 1
    driver.lost = set()
    assert "gpu" in ask(gpus, 4)[1][0]
    ask(gpus, 5)
    assert driver.starts == 2


def test_nvml_is_not_initialised_again_while_a_call_is_in_the_driver(
    gpus: nvml.Gpus, driver: Driver
) -> None:
    ask(gpus, 1)
    driver.lost = {1}
    ask(gpus, 2)
    hangs = threading.Event()
    driver.hangs = {0: hangs}
    gpus.ask("gpus", 3)
    assert driver.starts == 2
    gpus.ask("gpus", 4)
    assert driver.starts == 2, "it would wait for the call, or pull its memory away"
    driver.hangs = {}
    hangs.set()
    until(lambda: all(each.idle for each in gpus._threads), "the threads are idle")
    ask(gpus, 5)
    assert driver.starts == 3


def test_memory_that_nvml_does_not_have(gpus: nvml.Gpus, driver: Driver) -> None:
    """GB10 and Jetson: it is the host's. NVML is not initialized again for it."""
    driver.unified = {1}
    for number in (1, 2, 3):
        gpu = ask(gpus, number)[1][1]["gpu"]
        assert gpu["problem"] == "its memory cannot be read (unified memory): not supported"
        assert gpu["memory_bytes"] == 0
    assert driver.starts == 1


@pytest.mark.parametrize(
    ("rows", "problem"),
    [((1, 0, 1, 0), "row remapping is pending"), ((1, 1, 1, 1), "row remapping failed")],
)
def test_memory_that_waits_for_its_repair(
    gpus: nvml.Gpus, driver: Driver, rows: tuple[int, int, int, int], problem: str
) -> None:
    driver.remapped[1], driver.recovery = rows, {1: 2}
    lines = ask(gpus, 1)[1]
    assert [lines[index]["gpu"]["recovery"] for index in (0, 1)] == [0, 2]
    assert "problem" not in lines[0]["gpu"]
    assert lines[1]["gpu"]["problem"].startswith(problem)
    assert lines[1]["gpu"]["memory_bytes"] == 79 * GIB


def test_the_child_imports_little() -> None:
    """It is resident on every node; asyncio and what the agent needs besides take more than it."""
    program = "import sys, nri_plugin.gpu.nvml; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    modules = {name.partition(".")[0] for name in done.stdout.decode().split()}
    assert not modules & {"aiohttp", "asyncio", "google", "logging", "prometheus_client", "uvloop"}


def test_clients_of_mps_are_listed(driver: Driver) -> None:
    """Their list is not in older drivers; without one of the other lists nothing is known."""
    driver.mps = [SimpleNamespace(pid=7, usedGpuMemory=5)]
    assert processes.memory(object()) == {1: 3, 7: 5}
    driver.mps = None
    assert processes.memory(object()) == {1: 3}


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    for name, numa in (("0000:3b:00.0", "1\n"), ("10000:01:00.0", "-1\n"), ("0000:05:00.0", "x")):
        device = tmp_path / "devices" / "pci0000:3a" / "0000:3a:00.0" / name
        device.mkdir(parents=True)
        (device / "numa_node").write_text(numa)
        link = tmp_path / "bus/pci/devices" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(device)
    return tmp_path


@pytest.mark.parametrize(
    ("bus_id", "found"),
    [
        ("00000000:3B:00.0", (1, "pci0000:3a")),
        (b"00000000:3B:00.0", (1, "pci0000:3a")),
        ("00010000:01:00.0", (None, "pci0000:3a")),
        ("00000000:05:00.0", (None, "")),
        ("00000000:FF:00.0", (None, "")),
        ("", (None, "")),
        (b"\xff", (None, "")),
    ],
)
def test_place(sysfs: Path, bus_id: str | bytes, found: tuple[int | None, str]) -> None:
    assert description.place(bus_id, sysfs) == dict(zip(("numa", "root"), found, strict=True))


@pytest.mark.parametrize(
    ("linked", "found"),
    [
        ([], ["", "", "", ""]),
        ([(0, 1)], ["nvlink-0", "nvlink-0", "", ""]),
        ([(1, 3), (0, 2)], ["nvlink-0", "nvlink-1", "nvlink-0", "nvlink-1"]),
        ([(0, 1), (2, 3), (1, 2)], ["nvlink-0"] * 4),
    ],
)
def test_links(linked: list[tuple[int, int]], found: list[str]) -> None:
    assert nvml.links(4, linked) == found
