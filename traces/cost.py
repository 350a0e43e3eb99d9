"""Measures the time that the library adds to the calls of a recording.

The driver is c/recorded_driver.c. One process makes each call through the library and directly in
the driver, and the difference is the library's time. Two processes would also differ in their
memory layout. The median of several processes counts. Calls that were refused memory are left out,
because the library waits in these for memory that may be freed.
"""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Final

from traces import host
from traces.plan import Process

_BURST: Final = ("cuCtxGetDevice_v2", "cuKernelGetFunction", "cuKernelSetAttribute")


@dataclass(frozen=True)
class Part:
    """Steps of a process that are measured together: from `first` up to the one before `last`."""

    process: Process
    first: int
    last: int


def part(process: Process, mark: str) -> Part:
    """Return the calls between the marks `MARK begin` and `MARK end`."""
    steps = {text: step for step, text in process.marks}
    return Part(process, steps[f"{mark} begin"], steps[f"{mark} end"])


def shortest(process: Process, marks: str) -> Part:
    """Return the part with the fewest calls among those marked `MARKS 0`, `MARKS 1`, ..."""
    found = [
        part(process, text.removesuffix(" begin"))
        for _, text in process.marks
        if text.startswith(f"{marks} ") and text.endswith(" begin")
    ]
    return min(found, key=lambda each: each.last - each.first)


def burst(process: Process) -> Part:
    """Return the longest sequence of calls of one thread that are all in _BURST, which get
    functions and set an attribute."""
    found, first = Part(process, 0, 0), 0
    for step, call in enumerate(process.calls):
        if not call.text.startswith(_BURST) or call.thread != process.calls[first].thread:
            first = step + 1
        elif step + 1 - first > found.last - found.first:
            found = Part(process, first, step + 1)
    return found


def _repetitions(script: Path, *arguments: int) -> Sequence[Sequence[Sequence[str]]]:
    """Run several processes with the library and recorded_driver.c, and return their lines."""
    command = [str(host.program("trace-replay")), str(script), "--cost", *map(str, arguments)]
    with host.granted("recorded", 2**39, host.CONTEXT_BYTES) as granted:
        environment = {**granted, "LD_PRELOAD": str(host.LIBRARY)}
        runs = [
            subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            for _ in range(5)
        ]
    return [[line.split() for line in each.stdout.splitlines()] for each in runs]


def added_ns_per_call(processes: Sequence[Process], scripts: Path) -> float:
    """Return the library's mean added time per call of a recording, without calls that were refused
    memory. The processes are measured separately."""
    added_ns: dict[tuple[str, int], list[int]] = defaultdict(list)
    for process in processes:
        for word, *numbers in chain(*_repetitions(scripts / process.name)):
            if word == "run":
                run, with_it, without = map(int, numbers)
                added_ns[process.name, run].append(with_it - without)
    calls = sum(len(process.calls) for process in processes)
    return sum(median(each) for each in added_ns.values()) / calls


def part_ns(part: Part, script: Path, passes: int) -> tuple[float, float]:
    """Return the nanoseconds of a part without the library, and what the library adds."""
    took = [
        (float(without), float(with_it) - float(without))
        for lines in _repetitions(script, part.first, part.last, passes)
        for word, with_it, without, *_ in lines
        if word == "part"
    ]
    return median(without for without, _ in took), median(added for _, added in took)
