"""Queries NVML for the GPU memory and utilization of a GPU's processes (gpuslice/gpu/answers.py).

The calls may block in the driver.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Final

import pynvml

from gpuslice.gpu.answers import Usage

_LISTS: Final = (
    pynvml.nvmlDeviceGetComputeRunningProcesses,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses,
)
_MPS: Final = pynvml.nvmlDeviceGetMPSComputeRunningProcesses
"""Lists MPS clients, which _LISTS omit. Some GPUs and drivers before 470 do not have this list."""
_SAMPLES_US: Final = 2_000_000
"""Maximum age of the samples read. The driver takes at least one sample per second."""
_WHOLE_PERCENT: Final = 100
_NO_LIST: Final = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def query() -> Usage:
    """Return the use of all GPUs. NVML must be initialized. Raises pynvml.NVMLError."""
    return {uuid: memory(gpu) for uuid, gpu in _gpus()}


def _gpus() -> Iterator[tuple[str, object]]:
    """Yield the UUID and handle of each GPU that answers."""
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = str(pynvml.nvmlDeviceGetUUID(gpu))
        except pynvml.NVMLError:  # the GPU fell off the bus
            continue
        yield uuid, gpu


def memory(handle: object) -> Mapping[int, int | None] | None:
    """Return bytes by process number, or None if NVML cannot list the processes. A process with
    contexts of several kinds is in several lists, each time with its total."""
    by_pid: dict[int, int | None] = {}
    for listed in (*_LISTS, _MPS):
        try:
            rows = listed(handle)
        except pynvml.NVMLError as error:
            if listed is _MPS and error.value in _NO_LIST:
                continue
            return None
        by_pid |= {row.pid: row.usedGpuMemory for row in rows if row.pid not in by_pid}
    return by_pid


def utilization(handle: object) -> Mapping[int, int] | None:
    """Return percent by process number, or None for a GPU without such values (MIG). The driver
    keeps several samples per process, also of exited processes. Values above 100 are invalid."""
    since_us = time.time_ns() // 1000 - _SAMPLES_US
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    except pynvml.NVMLError as error:
        return {} if error.value == pynvml.NVML_ERROR_NOT_FOUND else None
    ordered = sorted(samples, key=lambda each: each.timeStamp)
    return {each.pid: each.smUtil for each in ordered if each.smUtil <= _WHOLE_PERCENT}
