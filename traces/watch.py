"""`python -m traces.watch UUID`: answers each line on stdin with NVML's figures, as JSON.

It runs without the library, so NVML's figures are the driver's. `used` is the GPU's memory in use,
in bytes. `processes` has the part of each process for which NVML has a figure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pynvml

from traces.host import ROOT


def used_bytes(handle: object) -> int:
    """Return the memory in use on the GPU. The driver's reserve is left out if NVML reports it."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return int(memory.used)


@dataclass(frozen=True)
class MemoryUse:
    used_bytes: int
    processes: Mapping[int, int]

    def of(self, pids: Collection[int]) -> int:
        return sum(self.processes.get(pid, 0) for pid in pids)


class Watch:
    """Reads NVML's figures of one GPU in a child process without the library. The child ends at
    the end of the `with` block, or when this process ends."""

    def __init__(self, uuid: str, environment: Mapping[str, str]) -> None:
        command, pipe = [sys.executable, "-m", "traces.watch", uuid], subprocess.PIPE
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True
        )

    def sample(self) -> MemoryUse:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        sample = json.loads(self._process.stdout.readline())
        return MemoryUse(
            sample["used"], {int(pid): used for pid, used in sample["processes"].items()}
        )

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def main(uuid: str) -> None:
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    kinds = (
        pynvml.nvmlDeviceGetComputeRunningProcesses,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses,
    )
    for _ in sys.stdin:
        found = [each for kind in kinds for each in kind(handle)]
        used = {each.pid: each.usedGpuMemory for each in found if each.usedGpuMemory is not None}
        seen = {"used": used_bytes(handle), "processes": used}
        sys.stdout.write(f"{json.dumps(seen)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
