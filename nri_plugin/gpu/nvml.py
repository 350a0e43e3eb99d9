"""Queries NVML about this node's GPUs: the child process of inventory.py.

`python -m nri_plugin.gpu.nvml` writes one line of JSON for each line that it reads, and exits at
the end of its input. It keeps NVML initialized, so that a query neither starts a process nor wakes
a GPU, and so that the driver reports XID errors to it. It exits if NVML fails as a whole, because
only a new process loads the driver's library again. The GPU's position on the board comes from
sysfs, which answers from memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import pynvml

from gpu import driver_root, nvml

_AT_ONCE_MS: Final = 0
_EVENTS_MOST: Final = 1000
"""Maximum per query: a failing GPU may report events faster than they can be read."""
_FIRST_OF_REMAPPED: Final = 2
_SYSFS: Final = Path("/sys")
_DOMAIN_DIGITS: Final = 4
"""NVML writes the PCI domain with eight digits; Linux with four, or more if needed."""


class Gpus:
    """NVML, initialized. Raises pynvml.NVMLError and driver_root.NotFoundError."""

    def __init__(self) -> None:
        nvml.start()
        self._events: object | None = None
        self._names: dict[int, str] = {}
        self._incomplete = False

    def read(self) -> Mapping[str, Any]:
        """Return the driver's version, every GPU, and the XID errors since the last call.

        without_uuid: why a GPU does not return even its UUID.
        """
        xids = self._xids()
        if self._incomplete:  # NVML finds a GPU that reappeared only when it is initialized again
            pynvml.nvmlShutdown()
            pynvml.nvmlInit()
            self._events, self._names = None, {}
        gpus, handles, without_uuid = [], [], []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                gpus.append({**_gpu(handle), "index": index})
                handles.append(handle)
            except pynvml.NVMLError as error:
                without_uuid.append(f"GPU {index}: {error}")
        for index, link in enumerate(links(len(handles), _linked(handles))):
            gpus[index]["link"] = link
        self._listen(handles, [gpu["uuid"] for gpu in gpus])
        self._incomplete = bool(without_uuid) or not all(gpu["memory_bytes"] for gpu in gpus)
        driver = pynvml.nvmlSystemGetDriverVersion()
        return {"driver": driver, "gpus": gpus, "xids": xids, "without_uuid": without_uuid}

    def _listen(self, handles: Sequence[Any], uuids: Sequence[str]) -> None:
        """Subscribe to XID errors of these GPUs, once; not all GPUs and drivers support it."""
        if self._events is not None:
            return
        try:
            self._events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError:
            return
        for handle, uuid in zip(handles, uuids, strict=True):
            try:
                kind = pynvml.nvmlEventTypeXidCriticalError
                pynvml.nvmlDeviceRegisterEvents(handle, kind, self._events)
                self._names[_address(handle)] = uuid
            except pynvml.NVMLError:
                continue

    def _xids(self) -> Sequence[tuple[str, int]]:
        """Return UUID and XID of each new error; the driver queues them in between."""
        found: list[tuple[str, int]] = []
        while self._names and len(found) < _EVENTS_MOST:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, _AT_ONCE_MS)
            except pynvml.NVMLError:  # a timeout: there are no more
                break
            uuid = self._names.get(_address(event.device))
            if uuid is not None:
                found.append((uuid, event.eventData))
        return found


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _gpu(handle: object) -> dict[str, Any]:
    gpu: dict[str, Any] = {
        "uuid": pynvml.nvmlDeviceGetUUID(handle),
        "minor": pynvml.nvmlDeviceGetMinorNumber(handle),
        "memory_bytes": 0,
    }
    try:
        gpu.update(_memory(handle))
        problem = _problem(handle)
    except pynvml.NVMLError as error:
        problem = str(error)
    if problem:
        gpu["problem"] = problem
    with contextlib.suppress(pynvml.NVMLError):
        gpu["model"] = pynvml.nvmlDeviceGetName(handle)
    try:
        bus_id = pynvml.nvmlDeviceGetPciInfo(handle).busId
    except pynvml.NVMLError:  # a failing GPU may not report its position
        return gpu
    return {**gpu, **place(bus_id), "bus_id": pci_address(bus_id)}


def pci_address(bus_id: str | bytes) -> str:
    """Convert NVML's bus id to Linux's form: 0000:3b:00.0."""
    text = bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else bus_id
    domain, _, rest = text.lower().partition(":")
    return f"{domain.lstrip('0').rjust(_DOMAIN_DIGITS, '0')}:{rest}"


def place(bus_id: str | bytes, sysfs: Path = _SYSFS) -> Mapping[str, Any]:
    """Return the position of the GPU with that bus id (NVML's form): numa, None if the board has
    one node or does not report it; root, as in pci0000:3a."""
    try:
        device = (sysfs / "bus/pci/devices" / pci_address(bus_id)).resolve(strict=True)
        numa = int((device / "numa_node").read_text())
    except (OSError, ValueError):
        return {"numa": None, "root": ""}
    roots = [part for part in device.parts if part.startswith("pci")]
    return {"numa": numa if numa >= 0 else None, "root": roots[0] if roots else ""}


def links(gpus: int, linked: Iterable[tuple[int, int]]) -> Sequence[str]:
    """Return for each GPU the name of its group: GPUs connected by NVLink, directly or through
    others; "" if it is not connected."""
    group = list(range(gpus))
    for one, other in linked:
        old, new = max(group[one], group[other]), min(group[one], group[other])
        group = [new if each == old else each for each in group]
    return [f"nvlink-{each}" if group.count(each) > 1 else "" for each in group]


def _memory(handle: object) -> Mapping[str, int]:
    """Return the allocatable memory, and the memory that the driver reserves in addition."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError:  # drivers before 510 do not report it
        return {"memory_bytes": pynvml.nvmlDeviceGetMemoryInfo(handle).total}
    allocatable = memory.total - memory.reserved
    return {"memory_bytes": allocatable, "reserved_bytes": memory.reserved}


def _problem(handle: object) -> str:
    """Return why this GPU cannot be shared although it answers; "": it can."""
    try:
        if pynvml.nvmlDeviceGetMigMode(handle)[0]:
            return "MIG mode is enabled: must be disabled for shares (nvidia-smi -mig 0)"
    except pynvml.NVMLError:  # this GPU has no MIG
        pass
    try:
        pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)[_FIRST_OF_REMAPPED:]
    except pynvml.NVMLError:  # this GPU remaps no rows
        return ""
    if failed:
        return "row remapping failed: replace the GPU"
    return "row remapping is pending: reset the GPU" if pending else ""


def _linked(handles: Sequence[object]) -> Sequence[tuple[int, int]]:
    pairs = combinations(range(len(handles)), 2)
    return [(one, other) for one, other in pairs if _by_nvlink(handles[one], handles[other])]


def _by_nvlink(one: object, other: object) -> bool:
    try:
        status = pynvml.nvmlDeviceGetP2PStatus(one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    except pynvml.NVMLError:  # older drivers and small GPUs do not support the query
        return False
    return bool(status == pynvml.NVML_P2P_STATUS_OK)


def main() -> int:
    """Run the child. On failure the last line on stderr states the cause."""
    try:
        gpus = Gpus()
        for _ in sys.stdin:
            sys.stdout.write(json.dumps(gpus.read()) + "\n")
            sys.stdout.flush()
    except (pynvml.NVMLError, driver_root.NotFoundError) as error:
        sys.stderr.write(f"NVML: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
