"""`python -m traces.watch UUID`: answers each line on stdin with NVML's figures, as JSON.

Runs without the library, beside programs that have it. `used` is the GPU's memory in use,
`processes` each process's part of it, in bytes; a process without a figure in NVML is left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pynvml

from traces.host import ROOT


def used_bytes(handle: object) -> int:
    """Memory in use on the GPU, without the driver's own reserve if it reports one."""
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
        """The sum over these processes."""
        return sum(self.processes.get(pid, 0) for pid in pids)


class Watch:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def sample(self) -> MemoryUse:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        sample = json.loads(self._process.stdout.readline())
        return MemoryUse(
            sample["used"], {int(pid): used for pid, used in sample["processes"].items()}
        )

    def end(self) -> None:
        self._process.communicate()


def start(uuid: str, environment: Mapping[str, str]) -> Watch:
    """NVML's view of one GPU, from a process without the library; it ends with this one."""
    return Watch(
        subprocess.Popen(
            [sys.executable, "-m", "traces.watch", uuid],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    )


@contextmanager
def watching(uuid: str, environment: Mapping[str, str]) -> Iterator[Watch]:
    """The same, ended at the end of the block."""
    watch = start(uuid, environment)
    try:
        yield watch
    finally:
        watch.end()


def _processes(handle: object) -> Mapping[int, int]:
    kinds = (
        pynvml.nvmlDeviceGetComputeRunningProcesses,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses,
    )
    found = [each for kind in kinds for each in kind(handle)]
    return {each.pid: each.usedGpuMemory for each in found if each.usedGpuMemory is not None}


def main(uuid: str) -> None:
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    for _ in sys.stdin:
        seen = {"used": used_bytes(handle), "processes": _processes(handle)}
        sys.stdout.write(f"{json.dumps(seen)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
