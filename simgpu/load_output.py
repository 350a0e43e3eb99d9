"""The output of cuda-load (src/load.c): launches that the GPU has finished, and the work in them in
percent of the time. Pure; the output may be that of several processes."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SECOND = re.compile(r"^after ([\d.]+) s: .* ([\d.]+) % of the time$", re.MULTILINE)
_TOTAL = re.compile(r"^total .*: (\d+) launches, ([\d.]+) % of the time$", re.MULTILINE)
_STEPS = re.compile(
    r"^launch to launch: best ([\d.]+) ns, p50 ([\d.]+) us, p99 ([\d.]+) us", re.MULTILINE
)


def seconds(output: str) -> Sequence[tuple[float, float]]:
    """Return each second's end, in seconds after the start, and its percentage."""
    return [(float(at_s), float(percent)) for at_s, percent in _SECOND.findall(output)]


def steps(output: str) -> Sequence[tuple[float, float, float]]:
    """Return three figures of each process that has ended, in microseconds: of the times from one
    launch to the next the best mean of some successive ones, the median and the 99th percentile."""
    return [
        (float(best_ns) / 1e3, float(p50), float(p99))
        for best_ns, p50, p99 in _STEPS.findall(output)
    ]


def totals(output: str) -> Sequence[tuple[int, float]]:
    """Return launches, and the percentage of its whole time, of each process that has ended."""
    return [(int(count), float(percent)) for count, percent in _TOTAL.findall(output)]
