"""How much of each GPU every process holds, as NVML says: contexts, code and allocations.

NVML names processes by their numbers in the initial PID namespace. Run as `python -m gpu.processes`
it is a server for a caller that must not wait for the driver: for each line that it reads it writes
one line of JSON, as `encode` makes it; it exits when its standard input ends.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Final, TextIO

import pynvml

Usage = Mapping[str, Mapping[int, int | None] | None]
"""By GPU UUID: bytes by process number, None where NVML has no figure for the process. None in the
place of a GPU's processes: it did not answer."""

_LISTS: Final = (
    pynvml.nvmlDeviceGetComputeRunningProcesses,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses,
)


def ask() -> Usage:
    """Ask now; NVML must be initialized. Raises pynvml.NVMLError where it names no GPU at all."""
    found: dict[str, Mapping[int, int | None] | None] = {}
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = str(pynvml.nvmlDeviceGetUUID(gpu))
        except pynvml.NVMLError:  # it fell off the bus
            continue
        found[uuid] = _processes(gpu)
    return found


def _processes(handle: object) -> Mapping[int, int | None] | None:
    """A process with contexts of both kinds is in both lists, each time with all that it holds."""
    held: dict[int, int | None] = {}
    for listed in _LISTS:
        try:
            rows = listed(handle)
        except pynvml.NVMLError:
            return None
        held |= {row.pid: row.usedGpuMemory for row in rows if row.pid not in held}
    return held


def encode(usage: Usage) -> str:
    """One line."""
    return json.dumps(usage) + "\n"


def decode(line: str | bytes) -> Usage:
    """What `encode` made; raises ValueError for anything else."""
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError(f"not a mapping: {line[:80]!r}")
    return {
        str(uuid): None if held is None else {int(pid): size for pid, size in held.items()}
        for uuid, held in found.items()
    }


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer each line of `requests` until they end."""
    for _ in requests:
        answers.write(encode(ask()))
        answers.flush()


def main() -> int:
    """The last line on stderr says why there is no answer."""
    try:
        pynvml.nvmlInit()
        serve(sys.stdin, sys.stdout)
    except pynvml.NVMLError as error:
        sys.stderr.write(f"NVML: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
