"""The parts of bench/scheduler.py: figures of the scheduler, with a real control plane or none.

Uses lab.cluster; nothing in lab depends on it.
"""

from __future__ import annotations

import sys
import time


def cpu_s(pid: int) -> float:
    """Processor time of another process, all threads, in nanosecond resolution: /proc has
    hundredths of a second, the time of ten pods. The clock's id is the kernel's
    (clock_getcpuclockid)."""
    return time.clock_gettime(~pid << 3 | 2)


def say(text: str) -> None:
    sys.stderr.write(f"  {text}\n")
    sys.stderr.flush()
