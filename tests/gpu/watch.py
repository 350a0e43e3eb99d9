"""`python -m tests.gpu.watch UUID`: each line on stdin is answered with what NVML says, as JSON.

Runs without the library, beside programs that have it. `used` is what the GPU gave up, `processes`
is what each process has of it, in bytes; a process whose amount NVML does not know is left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pynvml

from tests.gpu.facts import used_bytes
from tests.support import ROOT


@dataclass(frozen=True)
class Seen:
    used_bytes: int
    processes: Mapping[int, int]

    def of(self, pids: Collection[int]) -> int:
        """What these processes have together."""
        return sum(self.processes.get(pid, 0) for pid in pids)


class Watch:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def look(self) -> Seen:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        said = json.loads(self._process.stdout.readline())
        return Seen(said["used"], {int(pid): used for pid, used in said["processes"].items()})

    def end(self) -> None:
        self._process.communicate()


def start(uuid: str, environment: Mapping[str, str]) -> Watch:
    """NVML's view of one GPU, from a process that the library is not in; it ends with this one."""
    return Watch(
        subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.watch", uuid],
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
