"""Replays a recording through the library. Its processes share one grant of a simulated GPU.

This module starts the processes, in which c/replay.c makes the calls. At every checkpoint, no
process calls the driver. There this module measures the overhead as the node agent does, and
compares the grant's charge with NVML's figures. If the limit differs from the recorded GPU's size,
the replay ends at the first refusal that was not recorded: a program would then act differently.
"""

from __future__ import annotations

import subprocess
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from gpuslice.contract import grant_file, names, overhead
from shim import region
from shim.measurement import Measurement
from traces import host
from traces.plan import Process, plan
from traces.trace import Call, read
from traces.watch import Watch


class ReplayError(Exception):
    """A process of the replay failed, and the text is its output, or the options are invalid."""


@dataclass(frozen=True)
class Recording:
    """The processes of one recording, ready to be replayed."""

    processes: Sequence[Process]
    memory_bytes: int
    """The size of the recorded GPU; 0 if no process queried it."""

    @property
    def calls(self) -> int:
        return sum(len({call.line for call in each.calls}) for each in self.processes)

    @property
    def skipped(self) -> Counter[str]:
        return sum((each.skipped for each in self.processes), Counter())


@dataclass(frozen=True)
class Checkpoint:
    """The figures of a moment in which no process of the replay calls the driver."""

    charged_bytes: int
    """The sum of the library's charge and the overhead."""
    held_bytes: int
    """NVML's figure for all processes of the replay."""
    overhead_bytes: int
    """The measured overhead, which is memory beyond the library's charge."""
    code_bytes: int
    """The driver's memory for code that was loaded."""

    @property
    def error_bytes(self) -> int:
        """The larger of |held - charged| bytes and the overhead that exceeds the code's bytes."""
        return max(abs(self.held_bytes - self.charged_bytes), self.overhead_bytes - self.code_bytes)


@dataclass(frozen=True)
class Refusal:
    """The call at which a replay ended, because it was refused only under the replay's limit."""

    call: Call
    free_bytes: int
    """The part of the limit that was not used."""
    held_bytes: int


@dataclass
class Outcome:
    differences: list[str] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    refusal: Refusal | None = None

    @property
    def charge_error_bytes(self) -> int:
        return max((each.error_bytes for each in self.checkpoints), default=0)


def load(files: Sequence[Path], directory: Path) -> Recording:
    """Return the recording in these files. Write the replay's scripts and code to `directory`."""
    recordings = [read(path) for path in files]
    image = directory / "image.ptx"
    processes = plan(recordings, image)
    image.write_bytes(max((each.image for each in processes), key=len))
    for process in processes:
        (directory / process.name).write_bytes(process.script.encode(process.image))
    sizes = {each.memory_bytes for each in recordings} - {0}
    return Recording(processes, max(sizes, default=0))


class Replay:
    """One replay of a recording, in a directory that `load` filled."""

    def __init__(
        self, recording: Recording, scripts: Path, directory: Path, limit_bytes: int, watch: Watch
    ) -> None:
        """scripts: `load`'s directory. directory: gets the grant. watch: reads NVML's figures."""
        self._recording = recording
        self._scripts = scripts
        self._grant = directory / "grant"
        self._turns = directory / "turns"
        self._is_other_size = limit_bytes != recording.memory_bytes
        self._outcome = Outcome()
        self._watch = watch
        self._measurement = Measurement(self._grant, lambda: {host.UUID: watch.sample().processes})
        self._lock = threading.Lock()
        self._modules: dict[str, int] = {}
        self._running: list[subprocess.Popen[str]] = []
        self._grant.mkdir()
        gpu = grant_file.Gpu(host.UUID, limit_bytes, 100, 0, context_bytes=host.CONTEXT_BYTES)
        region.create(self._grant, [gpu])
        self._turns.write_bytes(bytes(4))

    def run(self, environment: Mapping[str, str]) -> Outcome:
        """Replay the recording once. Raise ReplayError if one of its processes fails."""
        under = {**environment, "LD_PRELOAD": str(host.LIBRARY), names.ENV_DIR: str(self._grant)}
        options, pipe = ["--other-size"] * self._is_other_size, subprocess.PIPE
        for process in self._recording.processes:
            script = str(self._scripts / process.name)
            command = [str(host.program("trace-replay")), script, str(self._turns), *options]
            self._running.append(
                subprocess.Popen(
                    command, env=under, stdin=pipe, stdout=pipe, stderr=pipe, text=True
                )
            )
        with ThreadPoolExecutor(len(self._running)) as readers:
            followed = [
                readers.submit(self._follow, process, running)
                for process, running in zip(self._recording.processes, self._running, strict=True)
            ]
            for each in followed:
                each.result()
        return self._outcome

    def _follow(self, process: Process, running: subprocess.Popen[str]) -> None:
        assert running.stdin is not None and running.stdout is not None
        with running:
            for line in running.stdout:
                word, *numbers = line.split()
                if word == "difference":
                    self._differs(process, *map(int, numbers))
                elif word == "refused":
                    (status,) = region.status(self._grant)
                    free_bytes = status.gpu.limit_bytes - status.used_bytes
                    call = process.calls[int(numbers[0])]
                    self._outcome.refusal = Refusal(call, free_bytes, self._held())
                elif word == "checkpoint":
                    self._look(process, int(numbers[0]))
                if word in ("refused", "checkpoint"):
                    running.stdin.write("\n")
                    running.stdin.flush()
            assert running.stderr is not None
            message = running.stderr.read().strip()
        with self._lock:
            self._modules.pop(process.name, None)
        if running.returncode:
            for each in self._running:
                each.kill()
            raise ReplayError(f"{process.name}: status {running.returncode}: {message}")

    def _look(self, process: Process, run: int) -> None:
        with self._lock:
            self._modules[process.name] = process.modules[run]
            code = sum(self._modules.values()) * host.MODULE_BYTES
            for _ in range(overhead.WINDOW):
                self._measurement.sample()
            (status,) = region.status(self._grant)
            measured = status.gpu.overhead_bytes
            self._outcome.checkpoints.append(
                Checkpoint(status.used_bytes, self._held(), measured, code)
            )

    def _held(self) -> int:
        return self._watch.sample().of([each.pid for each in self._running])

    def _differs(self, process: Process, step: int, result: int, argument: int, value: int) -> None:
        call = process.calls[step]
        got = f"result {result}" if argument < 0 else f"argument {'abcdefghijk'[argument]}={value}"
        with self._lock:
            self._outcome.differences.append(f"{process.name}:{call.line}: {got}: {call.text}")
