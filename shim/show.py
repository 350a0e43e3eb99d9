"""The command `python -m shim show`: a grant's limits, and what its processes use of them.

The command reads the files of one grant and prints a table. With `--watch` the table shows in which
part of the last second, and of the last ten, the GPU was busy. Without it the table shows the sums
since the container's start.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shim import region
from shim.region import GpuStatus

ABOUT: Final = "a grant's limits, their use, and the processes that use them"
_DESCRIPTION: Final = (
    f"Print {ABOUT}. USED counts against the limit; MEASURED is the part of it that the driver"
    " holds beside what processes are charged, as NVML last showed it (0B too where it has no"
    " figure for them, as under MPS). CORE is the share of the GPU's time, and POLICY the policy"
    " by which it is shared, as in `run --help`. BUSY is the GPU time of its launches, THROTTLED"
    " the time that launches waited, summed over threads; they count only where launches are"
    " checked: a container of the GPU has a limit of compute."
)
_WINDOWS_S: Final = (1, 10)
_SECOND_NS: Final = 1_000_000_000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument(
        "--watch",
        action="store_true",
        help="print the GPUs each second until interrupted, with the part of the last second and of"
        " the last ten in which each was busy",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="holds `grant` and `region`")


def run(options: argparse.Namespace) -> int:
    """Print one table, or watch. Return the exit status. Raises RegionDirectoryError."""
    if options.watch:
        _watch(options.directory)
        return 0
    entries = region.status(options.directory)
    _print(entries, "BUSY", [_seconds(entry.work.spent_ns) for entry in entries])
    for holder in region.holders(options.directory):
        label = f"process {holder.pid}" if holder.pid else "memory that several hold"
        held = "  ".join(map(size_text, holder.bytes))
        ended = then = ""
        if holder.ended:
            ended = ", which ended"
            then = ", reclaimed when a process starts, queries memory or would be refused"
        sys.stdout.write(f"  slot {holder.slot}: {label}{ended}: {held}{then}\n")
    return 0


def _watch(directory: Path) -> None:
    kept: deque[tuple[int, Sequence[GpuStatus]]] = deque(maxlen=max(_WINDOWS_S) + 1)
    heading = "/".join(f"{window_s}s" for window_s in _WINDOWS_S)
    with contextlib.suppress(KeyboardInterrupt):
        kept.append((time.monotonic_ns(), region.status(directory)))
        while True:
            time.sleep(1)
            kept.append((time.monotonic_ns(), region.status(directory)))
            _print(kept[-1][1], heading, [_shares(kept, gpu) for gpu in range(len(kept[-1][1]))])


def _shares(kept: Sequence[tuple[int, Sequence[GpuStatus]]], gpu: int) -> str:
    """Return the busy part of each period in _WINDOWS_S, or since the first read if shorter."""
    now_ns, now = kept[-1]
    shares = []
    for window_s in _WINDOWS_S:
        before_ns, before = kept[max(-window_s - 1, -len(kept))]
        busy_ns = max(now[gpu].work.spent_ns - before[gpu].work.spent_ns, 0)
        shares.append(f"{min(100 * busy_ns // max(now_ns - before_ns, 1), 100)}%")
    return "/".join(shares)


def _print(entries: Sequence[GpuStatus], heading: str, busy: Sequence[str]) -> None:
    """Print the table. heading: the column heading of `busy`."""
    limits = ("GPU", "USED", "MEASURED", "LIMIT", "CORE", "POLICY")
    headings = (*limits, heading, "THROTTLED", "REFUSED")
    rows = [headings]
    for entry, busy_text in zip(entries, busy, strict=True):
        use, gpu = entry.use, entry.gpu
        last = f", last {size_text(use.last_refused_bytes)}" if use.refused_count else ""
        rows.append(
            (
                gpu.uuid,
                size_text(entry.used_bytes),
                size_text(gpu.overhead_bytes),
                size_text(gpu.limit_bytes),
                f"{gpu.core_percent or 100}%",
                gpu.policy,
                busy_text,
                _seconds(entry.work.throttled_ns),
                f"{use.refused_count}{last}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(headings) - 1)]
    for row in rows:
        fixed = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        sys.stdout.write(f"{fixed}  {row[-1]}\n")
    sys.stdout.flush()


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / _SECOND_NS:.1f}s"


def size_text(amount: int) -> str:
    """Return a size as text in the largest unit that fits, such as 20GiB, 1.50MiB or 512B."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if amount >= size:
            exact = amount % size == 0
            return f"{amount // size}{unit}" if exact else f"{amount / size:.2f}{unit}"
    return f"{amount}B"
