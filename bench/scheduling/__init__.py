"""The parts of bench/scheduler.py. Some measure with a real control plane, others without one."""

from __future__ import annotations

import sys
import time


def cpu_s(pid: int) -> float:
    """Return the processor time of a process in nanosecond resolution, which /proc does not have.
    The id of the clock is computed as in clock_getcpuclockid."""
    return time.clock_gettime(~pid << 3 | 2)


def say(text: str) -> None:
    sys.stderr.write(f"  {text}\n")
    sys.stderr.flush()
