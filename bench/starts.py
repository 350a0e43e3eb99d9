"""Measures program starts, with the library preloaded and without.

glibc's posix_spawn works like vfork, so the size of this process does not matter. The caller's
environment names the directories of the grant and of the driver.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from math import inf
from pathlib import Path
from statistics import median

from bench import calibration_s


def one(
    program: Path, environments: Sequence[Mapping[str, str]], times: int
) -> tuple[Sequence[float], Sequence[float]]:
    """Measure the time from spawn to end, in each environment in turn. Return the median seconds
    and the calibration loop's least time, for each environment."""
    took_s: list[list[float]] = [[] for _ in environments]
    calibrations_s = [inf] * len(environments)
    for _ in range(times):
        for which, environment in enumerate(environments):
            begun_s = time.perf_counter()
            _end(program, os.posix_spawn(program, [str(program)], environment))
            took_s[which].append(time.perf_counter() - begun_s)
            calibrations_s[which] = min(calibrations_s[which], calibration_s())
    return [median(each) for each in took_s], calibrations_s


def many(program: Path, environment: Mapping[str, str], count: int) -> float:
    """Start `count` processes that stay alive together. Return the seconds from the first spawn
    until 99 percent of them have made their first call."""
    with ExitStack() as stack:
        ready, ready_end = map(os.fdopen, os.pipe(), ("rb", "wb"))
        end, end_end = map(os.fdopen, os.pipe(), ("rb", "wb"))
        for file in (ready, ready_end, end, end_end):
            stack.enter_context(file)
        actions = [
            (os.POSIX_SPAWN_DUP2, ready_end.fileno(), 1),
            (os.POSIX_SPAWN_DUP2, end.fileno(), 0),
        ]
        begun_s, ready_s = time.perf_counter(), list[float]()
        command = [str(program), "wait"]
        started = [
            os.posix_spawn(program, command, environment, file_actions=actions)
            for _ in range(count)
        ]
        ready_end.close()
        while len(ready_s) < count:
            said = os.read(ready.fileno(), count)
            if not said:
                raise RuntimeError(f"{program}: a process ended early")
            ready_s += [time.perf_counter() - begun_s] * len(said)
    for pid in started:
        _end(program, pid)
    return ready_s[(count - 1) * 99 // 100]


def _end(program: Path, pid: int) -> None:
    if os.waitpid(pid, 0)[1] != 0:
        raise RuntimeError(f"{program} failed")
