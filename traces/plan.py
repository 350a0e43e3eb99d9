"""Orders the processes of one recording, and splits their calls into runs.

A run is a sequence of calls of one thread. The runs of all threads and processes are replayed one
after the other. A checkpoint is a run without calls, at which no process calls the driver. It is
made at marks, before every call that was refused memory, and at the end of every process. If a
process ends with the release of a primary context, its last checkpoint is before the release. After
it, NVML would not list the process.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from traces import rules
from traces.script import Run, Script
from traces.trace import Call, Mark, Recording
from traces.translate import Translator

_MOST_STEPS: Final = 512
"""The most steps of a run."""
_LEAST_STEPS: Final = 100
"""The least number of steps before a checkpoint at a mark: some programs write many marks."""


@dataclass
class Process:
    """One process of a recording, ready to be replayed."""

    name: str
    script: Script = field(default_factory=Script)
    calls: list[Call] = field(default_factory=list)
    """The recorded call of each step."""
    marks: list[tuple[int, str]] = field(default_factory=list)
    """For each mark, the number of steps before it, and its text."""
    modules: dict[int, int] = field(default_factory=dict)
    """For the index of each checkpoint's run, the number of modules with code on the GPU."""
    skipped: Counter[str] = field(default_factory=Counter)
    image: bytes = b""


@dataclass
class _Open:
    """The run to which the next call is added."""

    process: int
    thread: int
    first: int


class _Planner:
    def __init__(self, recordings: Sequence[Recording], image_path: Path) -> None:
        self.processes = [Process(each.name) for each in recordings]
        self._translators = [
            Translator(process.script, recording.primary, str(image_path))
            for process, recording in zip(self.processes, recordings, strict=True)
        ]
        self._open = _Open(0, 1, 0)
        self._turns = 0
        self._looked = [0] * len(recordings)
        """For each process, the number of steps before its latest checkpoint."""

    def call(self, index: int, call: Call) -> None:
        process = self.processes[index]
        steps = process.script.steps
        entry, result, *_ = call.text.split(" ", 2)
        is_refused = int(result) == rules.OUT_OF_MEMORY
        if is_refused or entry in rules.RELEASES:
            self.checkpoint(index)
        operations = self._translators[index].operations(call)
        if not operations:
            return
        here = (self._open.process, self._open.thread) == (index, call.thread)
        if not here or len(steps) - self._open.first >= _MOST_STEPS:
            self.close()
            self._open = _Open(index, call.thread, len(steps))
        steps.extend(operations)
        process.calls += [call] * len(operations)
        if is_refused:
            self.close()

    def close(self) -> None:
        process, first = self.processes[self._open.process], self._open.first
        count = len(process.script.steps) - first
        if count:
            self._run(process, Run(self._open.thread, first, count, self._turns, False))
        self._open.first += count

    def checkpoint(self, index: int) -> None:
        self.close()
        process = self.processes[index]
        self._open = _Open(index, 1, len(process.script.steps))
        process.modules[len(process.script.runs)] = self._translators[index].code.modules
        self._looked[index] = self._open.first
        self._run(process, Run(1, self._open.first, 0, self._turns, True))

    def mark(self, index: int, mark: Mark) -> None:
        process = self.processes[index]
        if len(process.script.steps) - self._looked[index] >= _LEAST_STEPS:
            self.checkpoint(index)
        process.marks.append((len(process.script.steps), mark.text))

    def end(self, index: int) -> None:
        self.close()
        calls = self.processes[index].calls
        if not calls or calls[-1].text.split(" ", 1)[0] not in rules.RELEASES:
            self.checkpoint(index)

    def finish(self) -> None:
        for process, translator in zip(self.processes, self._translators, strict=True):
            process.skipped = translator.skipped
            process.image = rules.image(translator.most_kernels)

    def _run(self, process: Process, run: Run) -> None:
        process.script.runs.append(run)
        self._turns += 1


def plan(recordings: Sequence[Recording], image_path: Path) -> Sequence[Process]:
    """Return the processes of one recording. image_path: where their code will be written."""
    planner = _Planner(recordings, image_path)
    for _, index, item in heapq.merge(*map(_timed, range(len(recordings)), recordings)):
        if item is None:
            planner.end(index)
        elif isinstance(item, Mark):
            planner.mark(index, item)
        else:
            planner.call(index, item)
    planner.finish()
    return planner.processes


def _timed(index: int, recording: Recording) -> Iterator[tuple[int, int, Call | Mark | None]]:
    """Yield the items of a process in order, each with its time. None is the process's end."""
    time_us = recording.start_us
    for item in recording.items:
        if isinstance(item, Call):
            time_us = max(time_us, recording.start_us + item.time_us)
        yield time_us, index, item
    yield time_us, index, None
