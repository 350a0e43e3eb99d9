"""NVML queries that the simulated driver cannot answer: XID errors, reserved memory, remapped rows.
NVML is a stand-in here."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from nri_plugin.gpu import nvml
from tests.support import GIB


class Driver:
    """Two GPUs; handles are addresses, as NVML's are."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int]] = []
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
            "nvmlEventSetCreate": object,
            "nvmlDeviceRegisterEvents": lambda handle, kinds, events: None,
            "nvmlEventSetWait_v2": self._wait,
        }

    def _init(self) -> None:
        self.starts += 1

    def _handle(self, index: int) -> ctypes.c_void_p:
        if index in self.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return ctypes.c_void_p(100 + index)

    def _memory(self, handle: object, version: int = 0) -> SimpleNamespace:
        return SimpleNamespace(total=80 * GIB, reserved=GIB if version else None)

    def _unsupported(self, *_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def _wait(self, events: object, timeout_ms: int) -> SimpleNamespace:
        assert timeout_ms == 0
        if not self.events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        handle, xid = self.events.pop(0)
        return SimpleNamespace(device=ctypes.c_void_p(handle), eventData=xid)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    for name, function in driver.named().items():
        monkeypatch.setattr(pynvml, name, function)
    return driver


def test_memory_is_what_can_be_allocated(driver: Driver) -> None:
    for gpu in nvml.Gpus().read()["gpus"]:
        assert (gpu["memory_bytes"], gpu["reserved_bytes"]) == (79 * GIB, GIB)
        assert (gpu["bus_id"], gpu["model"]) == ("0000:3b:00.0", "NVIDIA H100 80GB HBM3")
        assert "problem" not in gpu


def test_xid_errors_since_the_last_look(driver: Driver) -> None:
    gpus = nvml.Gpus()
    assert gpus.read()["xids"] == []
    driver.events = [(101, 79), (100, 13), (555, 48)]
    driver.lost = {1}  # it fell off the bus, and the event still has its name
    assert gpus.read()["xids"] == [("GPU-1", 79), ("GPU-0", 13)]
    assert gpus.read()["xids"] == []


def test_a_gpu_that_does_not_answer_leaves_the_others_their_index(driver: Driver) -> None:
    gpus = nvml.Gpus()
    assert [gpu["index"] for gpu in gpus.read()["gpus"]] == [0, 1]
    driver.lost = {0}
    assert [gpu["index"] for gpu in gpus.read()["gpus"]] == [1]


def test_nvml_is_initialised_again_only_while_a_gpu_does_not_answer(driver: Driver) -> None:
    gpus = nvml.Gpus()
    gpus.read(), gpus.read()
    assert driver.starts == 1
    driver.lost = {1}
    without_uuid = gpus.read()["without_uuid"]
    assert without_uuid == [f"GPU 1: {pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)}"]
    driver.lost = set()
    assert len(gpus.read()["gpus"]) == 2
    gpus.read()
    assert driver.starts == 2


@pytest.mark.parametrize(
    ("rows", "problem"),
    [((1, 0, 1, 0), "row remapping is pending"), ((1, 1, 1, 1), "row remapping failed")],
)
def test_memory_that_waits_for_its_repair(
    driver: Driver, rows: tuple[int, int, int, int], problem: str
) -> None:
    driver.remapped[1] = rows
    first, second = nvml.Gpus().read()["gpus"]
    assert "problem" not in first
    assert second["problem"].startswith(problem)
    assert second["memory_bytes"] == 79 * GIB


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
    assert nvml.place(bus_id, sysfs) == dict(zip(("numa", "root"), found, strict=True))


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
