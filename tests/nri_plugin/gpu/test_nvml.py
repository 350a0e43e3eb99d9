"""NVML queries that the simulated driver cannot answer, over a stand-in for NVML."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pynvml
import pytest

from gpuslice.gpu import processes
from nri_plugin.gpu import description, nvml
from tests.support import GIB, until

NOT_SUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@dataclass(eq=False)
class OneGpu:
    """A GPU, and its NVML handle. recovery: the recovery action, or None if the driver has none."""

    minor: int
    uuid: str
    remapped: tuple[int, ...] = (0, 0, 0, 0)
    recovery: int | None = None
    unified: bool = False
    lost: bool = False
    hangs: threading.Event | None = None
    xids: list[int] = field(default_factory=list)


class Nvml:
    """NVML's process over a stand-in for a driver of two GPUs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.one, self.other, self.init = OneGpu(0, "GPU-0"), OneGpu(1, "GPU-1"), Mock()
        for name, function in {
            "nvmlInit": self.init,
            "nvmlShutdown": Mock(),
            "nvmlSystemGetDriverVersion": Mock(return_value="580.1"),
            "nvmlDeviceGetCount": Mock(return_value=2),
            "nvmlDeviceGetHandleByIndex": self._handle,
            "nvmlDeviceGetUUID": attrgetter("uuid"),
            "nvmlDeviceGetName": Mock(return_value="NVIDIA H100 80GB HBM3"),
            "nvmlDeviceGetMinorNumber": attrgetter("minor"),
            "nvmlDeviceGetMemoryInfo": self._memory,
            "nvmlDeviceGetMigMode": Mock(side_effect=cycle([NOT_SUPPORTED, (0, 1)])),
            "nvmlDeviceGetRemappedRows": attrgetter("remapped"),
            "nvmlDeviceGetPciInfo": Mock(return_value=SimpleNamespace(busId="00000000:3B:00.0")),
            "nvmlDeviceGetP2PStatus": Mock(side_effect=NOT_SUPPORTED),
            "nvmlEventSetCreate": SimpleNamespace,
            "nvmlDeviceRegisterEvents": lambda gpu, kinds, events: setattr(events, "gpu", gpu),
            "nvmlDeviceGetFieldValues": self._fields,
            "nvmlEventSetWait_v2": self._wait,
        }.items():
            monkeypatch.setattr(pynvml, name, function)
        self._lines: list[dict[str, Any]] = []
        self.gpus = nvml.Gpus(lambda text: self._lines.append(json.loads(text)))

    def ask(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Query NVML. Return the answer's first line, and the lines of both GPUs."""
        self._until_idle()
        self._lines.clear()
        self.gpus.ask("gpus", 1)
        until(lambda: len(self._lines) == 3, "both GPUs answer")
        self._until_idle()
        head, *lines = sorted(self._lines, key=lambda line: int(line.get("index", -1)))
        return head, lines

    def links(self) -> list[str]:
        self._lines.clear()
        self.gpus.ask("links", 1)
        until(lambda: len(self._lines) == 2, "the board answers")
        return [str(link) for link in self._lines[1]["links"]]

    def _until_idle(self) -> None:
        until(lambda: all(each.idle for each in self.gpus._threads), "the threads are idle")

    def _handle(self, index: int) -> OneGpu:
        gpu = (self.one, self.other)[index]
        if gpu.hangs:
            gpu.hangs.wait(60)
        if gpu.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return gpu

    def _memory(self, gpu: OneGpu, version: int = 0) -> SimpleNamespace:
        if gpu.unified:
            raise NOT_SUPPORTED
        return SimpleNamespace(total=80 * GIB, reserved=GIB if version else None)

    def _wait(self, events: SimpleNamespace, timeout_ms: int) -> SimpleNamespace:
        assert timeout_ms == 0
        if not events.gpu.xids:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        return SimpleNamespace(eventData=events.gpu.xids.pop(0))

    def _fields(self, gpu: OneGpu, fields: list[int]) -> list[SimpleNamespace]:
        assert fields == [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        lacks = gpu.recovery is None
        code = pynvml.NVML_ERROR_NOT_SUPPORTED if lacks else pynvml.NVML_SUCCESS
        action = 77 if lacks else gpu.recovery
        return [SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(uiVal=action))]


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nvml]:
    made = Nvml(monkeypatch)
    yield made
    for each in (*made.gpus._threads, made.gpus._board):
        each.end()


def test_memory_is_what_can_be_allocated(process: Nvml) -> None:
    head, lines = process.ask()
    assert (head["count"], head["driver"]) == (2, "580.1")
    for line in lines:
        gpu = line["gpu"]
        assert (gpu["memory_bytes"], gpu["reserved_bytes"]) == (79 * GIB, GIB)
        assert (gpu["bus_id"], gpu["model"]) == ("0000:3b:00.0", "NVIDIA H100 80GB HBM3")
        assert "problem" not in gpu and "recovery" not in gpu


def test_xid_errors_since_the_last_look(process: Nvml) -> None:
    first, second = process.one, process.other
    assert [line["xids"] for line in process.ask()[1]] == [[], []]
    first.xids, second.xids = [13, 48], [79]
    second.lost = True  # the GPU fell off the bus, but the XID event still has its UUID
    lines = process.ask()[1]
    assert lines[0]["xids"] == [["GPU-0", 13], ["GPU-0", 48]]
    assert lines[1]["xids"] == [["GPU-1", 79]] and "error" in lines[1]
    second.xids = [95]
    assert process.ask()[0]["xids"] == [["GPU-1", 95]], "read before NVML is initialized again"
    second.lost = False
    assert [line["xids"] for line in process.ask()[1]] == [[], []]
    first.xids = [13] * 1001
    counts = [len(process.ask()[1][0]["xids"]) for _ in range(3)]
    assert counts == [1000, 1, 0], "so many at most in one answer"


def test_nvml_is_initialised_again_only_while_a_gpu_does_not_answer(process: Nvml) -> None:
    process.ask()
    process.ask()
    assert process.init.call_count == 1
    process.one.lost = True
    lines = process.ask()[1]
    assert lines[0]["error"] == str(pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST))
    assert lines[1]["gpu"]["index"] == 1
    process.one.lost = False
    assert "gpu" in process.ask()[1][0]
    process.other.lost = True
    process.ask()
    process.one.hangs = hangs = threading.Event()
    process.gpus.ask("gpus", 3)
    assert process.init.call_count == 3
    until(lambda: process.gpus._gpus[0].incomplete, "the call is in the driver")
    process.gpus.ask("gpus", 4)
    assert process.init.call_count == 3, "it would wait for the call, or pull its memory away"
    hangs.set()
    process.ask()
    assert process.init.call_count == 4


def test_gpus_that_nvlink_connects_are_linked(
    process: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some drivers do not support the query. A lost GPU is linked to none."""
    assert process.links() == ["", ""]
    connected = [pynvml.NVML_P2P_STATUS_NOT_SUPPORTED, *[pynvml.NVML_P2P_STATUS_OK] * 2]
    monkeypatch.setattr(pynvml, "nvmlDeviceGetP2PStatus", Mock(side_effect=connected))
    assert [process.links() for _ in range(2)] == [["", ""], ["nvlink-0", "nvlink-0"]]
    process.one.lost = True
    assert process.links() == ["", ""]


def test_a_thread_without_a_query_is_idle(process: Nvml) -> None:
    """NVML is initialized again only if all threads are idle, also those never asked."""
    assert all(each.idle for each in (*process.gpus._threads, process.gpus._board))


def test_memory_that_nvml_does_not_have(process: Nvml) -> None:
    """GB10 and Jetson use the host's memory. This error does not make the process restart NVML."""
    process.other.unified = True
    for _ in range(3):
        gpu = process.ask()[1][1]["gpu"]
        assert gpu["problem"] == "its memory cannot be read (unified memory): not supported"
        assert gpu["memory_bytes"] == 0
    assert process.init.call_count == 1


@pytest.mark.parametrize(
    ("rows", "problem"),
    [((1, 0, 1, 0), "row remapping is pending"), ((1, 1, 1, 1), "row remapping failed")],
)
def test_memory_that_waits_for_repair(process: Nvml, rows: tuple[int, ...], problem: str) -> None:
    process.other.remapped = rows
    process.one.recovery, process.other.recovery = 0, 2
    first, second = (line["gpu"] for line in process.ask()[1])
    assert (first["recovery"], second["recovery"]) == (0, 2)
    assert "problem" not in first
    assert second["problem"].startswith(problem)
    assert second["memory_bytes"] == 79 * GIB


def test_the_child_imports_little() -> None:
    """The child runs on every node. With asyncio and such it would be more than twice as large."""
    program = "import sys, nri_plugin.gpu.nvml; print(*sys.modules)"
    found = subprocess.check_output([sys.executable, "-c", program], text=True)
    modules = {name.partition(".")[0] for name in found.split()}
    assert not modules & {"aiohttp", "asyncio", "google", "logging", "prometheus_client", "uvloop"}


def test_clients_of_mps_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older drivers have no list of MPS' clients. The other lists suffice then."""
    listed, client = (SimpleNamespace(pid=pid, usedGpuMemory=pid * 2) for pid in (1, 7))
    monkeypatch.setattr(processes, "_LISTS", (Mock(return_value=[listed]),))
    monkeypatch.setattr(processes, "_MPS", Mock(side_effect=[[client], NOT_SUPPORTED]))
    assert processes.memory(object()) == {1: 2, 7: 14}
    assert processes.memory(object()) == {1: 2}


@pytest.mark.parametrize(
    ("bus_id", "found"),
    [
        ("00000000:3B:00.0", (1, "pci0000:3a")),
        (b"00000000:3B:00.0", (1, "pci0000:3a")),
        ("00000000:04:00.0", (0, "pci0000:3a")),
        ("00010000:01:00.0", (None, "pci0000:3a")),
        ("00000000:05:00.0", (None, "")),
        ("00000000:FF:00.0", (None, "")),
        ("", (None, "")),
        (b"\xff", (None, "")),
    ],
)
def test_place(tmp_path: Path, bus_id: str | bytes, found: tuple[int | None, str]) -> None:
    links = tmp_path / "bus/pci/devices"
    links.mkdir(parents=True)
    numas = {"0000:3b:00.0": "1\n", "0000:04:00.0": "0\n", "10000:01:00.0": "-1\n"}
    for name, numa in {**numas, "0000:05:00.0": "x"}.items():
        device = tmp_path / "devices/pci0000:3a/0000:3a:00.0" / name
        device.mkdir(parents=True)
        (device / "numa_node").write_text(numa)
        (links / name).symlink_to(device)
    assert description.place(bus_id, tmp_path) == dict(zip(("numa", "root"), found, strict=True))


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
