"""GPU memory of every process, as NVML reports it: contexts, code and allocations.

NVML uses process numbers of the initial PID namespace. `python -m gpu.processes` is a server for a
caller that must not block on the driver: for each line on standard input it writes one line of
JSON, formatted by `encode`. It exits at the end of its input.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Final, TextIO

import pynvml

Usage = Mapping[str, Mapping[int, int | None] | None]
"""GPU UUID -> process number -> bytes. None for a process: NVML has no value for it. None for a
GPU: it did not answer."""

_LISTS: Final = (
    pynvml.nvmlDeviceGetComputeRunningProcesses,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses,
)


def ask() -> Usage:
    """Query NVML, which must be initialized. Raises pynvml.NVMLError if it lists no GPU at all."""
    found: dict[str, Mapping[int, int | None] | None] = {}
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = str(pynvml.nvmlDeviceGetUUID(gpu))
        except pynvml.NVMLError:  # the GPU fell off the bus
            continue
        found[uuid] = _processes(gpu)
    return found


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


def encode(usage: Usage) -> str:
    """Return one line of JSON."""
    return json.dumps(usage) + "\n"


def decode(line: str | bytes) -> Usage:
    """Parse the output of `encode`; raises ValueError for anything else."""
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError(f"not a mapping: {line[:80]!r}")
    return {
        str(uuid): None if held is None else {int(pid): size for pid, size in held.items()}
        for uuid, held in found.items()
    }


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer each line of `requests` until end of input."""
    for _ in requests:
        answers.write(encode(ask()))
        answers.flush()


def main() -> int:
    """Return the exit status. On failure the last line on stderr states the cause."""
    try:
        pynvml.nvmlInit()
        serve(sys.stdin, sys.stdout)
    except pynvml.NVMLError as error:
        sys.stderr.write(f"NVML: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
