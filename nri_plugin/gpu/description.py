"""Describes one GPU by NVML's answers: identity, memory, position, and why it cannot be shared.

Blocks in the driver. The GPU's position on the board comes from sysfs, which does not block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pynvml

from nri_plugin.policy.memory_limits import MIG_MODE

_FIRST_OF_REMAPPED: Final = 2
_SYSFS: Final = Path("/sys")
_DOMAIN_DIGITS: Final = 4
"""Least number of digits of a PCI domain in Linux. NVML always writes eight digits."""


def describe(handle: object) -> tuple[dict[str, Any], bool]:
    """Return the fields of model.Gpu, with `recovery` where the driver supports it; and whether a
    new nvmlInit may return missing values. Raises pynvml.NVMLError if NVML returns no UUID."""
    gpu: dict[str, Any] = {
        "uuid": pynvml.nvmlDeviceGetUUID(handle),
        "minor": pynvml.nvmlDeviceGetMinorNumber(handle),
        "memory_bytes": 0,
    }
    problem, incomplete = "", False
    try:
        gpu.update(_memory(handle))
        problem = _problem(handle)
    except pynvml.NVMLError as error:
        incomplete = error.value != pynvml.NVML_ERROR_NOT_SUPPORTED
        problem = str(error)
        if not incomplete:
            problem = "its memory cannot be read (unified memory): not supported"
    if problem:
        gpu["problem"] = problem
    with contextlib.suppress(pynvml.NVMLError):
        gpu["model"] = pynvml.nvmlDeviceGetName(handle)
    recovery = _recovery(handle)
    if recovery is not None:
        gpu["recovery"] = recovery
    try:
        bus_id = pynvml.nvmlDeviceGetPciInfo(handle).busId
    except pynvml.NVMLError:  # a failing GPU may not report its position
        return gpu, incomplete
    return {**gpu, **place(bus_id), "bus_id": pci_address(bus_id)}, incomplete


def pci_address(bus_id: str | bytes) -> str:
    """Convert NVML's bus id to Linux's form, for example 0000:3b:00.0."""
    text = bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else bus_id
    domain, _, rest = text.lower().partition(":")
    return f"{domain.lstrip('0').rjust(_DOMAIN_DIGITS, '0')}:{rest}"


def place(bus_id: str | bytes, sysfs: Path = _SYSFS) -> Mapping[str, Any]:
    """Return the GPU's NUMA node as `numa`, None if the board has only one or reports none, and its
    PCI root as `root`, for example pci0000:3a. bus_id: as NVML writes it."""
    try:
        device = (sysfs / "bus/pci/devices" / pci_address(bus_id)).resolve()
        numa = int((device / "numa_node").read_text())
    except (OSError, ValueError):
        return {"numa": None, "root": ""}
    roots = [part for part in device.parts if part.startswith("pci")]
    return {"numa": numa if numa >= 0 else None, "root": roots[0] if roots else ""}


def _memory(handle: object) -> Mapping[str, int]:
    """Return the GPU's allocatable memory, and the rest, which the driver reserves."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError:  # drivers before 510 do not report the reserved memory
        return {"memory_bytes": pynvml.nvmlDeviceGetMemoryInfo(handle).total}
    allocatable = memory.total - memory.reserved
    return {"memory_bytes": allocatable, "reserved_bytes": memory.reserved}


def _problem(handle: object) -> str:
    """Return why this GPU cannot be shared although it answers; "" if it can."""
    try:
        if pynvml.nvmlDeviceGetMigMode(handle)[0]:
            return MIG_MODE
    except pynvml.NVMLError:  # this GPU has no MIG
        pass
    try:
        pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)[_FIRST_OF_REMAPPED:]
    except pynvml.NVMLError:  # this GPU remaps no rows
        return ""
    if failed:
        return "row remapping failed: replace the GPU"
    return "row remapping is pending: reset the GPU" if pending else ""


def _recovery(handle: object) -> int | None:
    """Return the recovery action that the driver requests for the GPU (inventory.py); None before
    release 570, which has no such field."""
    try:
        (field,) = pynvml.nvmlDeviceGetFieldValues(
            handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        )
    except pynvml.NVMLError:
        return None
    return int(field.value.uiVal) if field.nvmlReturn == pynvml.NVML_SUCCESS else None
