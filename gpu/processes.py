"""Queries NVML for the GPU memory and utilization of every process (gpu/answers.py).

`python -m gpu.processes` is a server for a caller that must not block on the driver: for each line
on standard input it writes one line of JSON, formatted by `answers.encode`. It exits at the end of
its input.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from typing import Final, TextIO

import pynvml

from gpu import driver_root, nvml
from gpu.answers import Usage, encode

_LISTS: Final = (
    pynvml.nvmlDeviceGetComputeRunningProcesses,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses,
)
_SAMPLES_US: Final = 2_000_000
"""Age of the samples that are read: the driver takes one per second at the least."""
_WHOLE_PERCENT: Final = 100


def query() -> Usage:
    """Query NVML, which must be initialized. Raises pynvml.NVMLError if it lists no GPU at all."""
    return {uuid: _processes(gpu) for uuid, gpu in _gpus()}


def _gpus() -> Iterator[tuple[str, object]]:
    """UUID and handle of each."""
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = str(pynvml.nvmlDeviceGetUUID(gpu))
        except pynvml.NVMLError:  # the GPU fell off the bus
            continue
        yield uuid, gpu


def _processes(handle: object) -> Mapping[int, int | None] | None:
    """A process with contexts of both kinds is in both lists, each time with its total."""
    held: dict[int, int | None] = {}
    for listed in _LISTS:
        try:
            rows = listed(handle)
        except pynvml.NVMLError:
            return None
        held |= {row.pid: row.usedGpuMemory for row in rows if row.pid not in held}
    return held


def _utilization(handle: object) -> Mapping[int, int] | None:
    """The driver keeps several samples of a process, and those of a process that has exited. It may
    write numbers above 100 percent where it has none."""
    since_us = time.time_ns() // 1000 - _SAMPLES_US
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    except pynvml.NVMLError as error:
        return {} if error.value == pynvml.NVML_ERROR_NOT_FOUND else None
    ordered = sorted(samples, key=lambda each: each.timeStamp)
    return {each.pid: each.smUtil for each in ordered if each.smUtil <= _WHOLE_PERCENT}


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer each line of `requests` until end of input."""
    for _ in requests:
        gpus = list(_gpus())
        usage = {uuid: _processes(gpu) for uuid, gpu in gpus}
        answers.write(encode(usage, {uuid: _utilization(gpu) for uuid, gpu in gpus}))
        answers.flush()


def main() -> int:
    """Return the exit status. On failure the last line on stderr states the cause."""
    try:
        nvml.start()
        serve(sys.stdin, sys.stdout)
    except (pynvml.NVMLError, driver_root.NotFoundError) as error:
        sys.stderr.write(f"NVML: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
