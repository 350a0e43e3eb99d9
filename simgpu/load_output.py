"""Reads the output of one or more cuda-load (src/load): finished launches, and their work in
percent of the time. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SECOND = re.compile(r"^after ([\d.]+) s: .* ([\d.]+) % of the time$", re.MULTILINE)
_TOTAL = re.compile(r"^total .*: (\d+) launches, ([\d.]+) % of the time$", re.MULTILINE)
_TIMES = r"p50 ([\d.]+) us, p99 ([\d.]+) us"
_LAUNCHES = re.compile(rf"^launch to launch: best ([\d.]+) ns, {_TIMES}", re.MULTILINE)
_STEPS = re.compile(rf"^steps: (\d+), {_TIMES}", re.MULTILINE)


def seconds(output: str) -> Sequence[tuple[float, float]]:
    """Return each second's end, in seconds after the start, and the work in it in percent."""
    return [(float(at_s), float(percent)) for at_s, percent in _SECOND.findall(output)]


def between_launches(output: str) -> Sequence[tuple[float, float, float]]:
    """Return the times between launches of each ended process, in us: the least mean of some
    successive launches, the median, and the 99th percentile."""
    return [
        (float(best_ns) / 1e3, float(p50), float(p99))
        for best_ns, p50, p99 in _LAUNCHES.findall(output)
    ]


def steps(output: str) -> Sequence[tuple[int, float, float]]:
    """Return each ended process's number of steps, and the median and the 99th percentile of their
    times, in us. A process without --step has none."""
    return [(int(count), float(p50), float(p99)) for count, p50, p99 in _STEPS.findall(output)]


def totals(output: str) -> Sequence[tuple[int, float]]:
    """Return each ended process's launches, and its work in percent of its whole time."""
    return [(int(count), float(percent)) for count, percent in _TOTAL.findall(output)]
