"""`python -m shim show`: a grant's limits, and what its processes use of them.

Reads the files of one grant; writes text. A share of the last second needs two reads, so only
`--watch` has it; a single table has the sums since the container's start.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from shim import region
from shim.region import GpuStatus

ABOUT: Final = "what a grant allows, what is used of it, and by which process"
_DESCRIPTION: Final = (
    f"Say {ABOUT}. USED counts against the limit; MEASURED is the part of it that the driver holds"
    " beside what processes are charged, as NVML last showed it (0B too where it has no figure for"
    " them, as under MPS). CORE is the share of the GPU's time, forced: also while the GPU is"
    " otherwise idle. BUSY is the time of finished work, THROTTLED the time that launches waited"
    " for their turn, summed over threads; both count only where launches are checked: the GPU is"
    " shared, or a share is forced."
)
_HEADINGS: Final = ("GPU", "USED", "MEASURED", "LIMIT", "CORE", "BUSY", "THROTTLED", "REFUSED")
_SECOND_NS: Final = 1_000_000_000


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = _DESCRIPTION
    parser.add_argument(
        "--watch",
        action="store_true",
        help="print the GPUs each second, with BUSY as part of the last second, until interrupted",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="holds `grant` and `region`")


def run(options: argparse.Namespace) -> int:
    """Return the exit status. Raises RegionDirectoryError."""
    if options.watch:
        _watch(options.directory)
        return 0
    entries = region.status(options.directory)
    _print(entries, [_seconds(entry.work.busy_ns) for entry in entries])
    for holder in region.holders(options.directory):
        label = f"process {holder.pid}" if holder.pid else "memory that several hold"
        held = "  ".join(map(size_text, holder.bytes))
        ended, then = (
            (", which ended", ", back when another one asks") if holder.ended else ("", "")
        )
        sys.stdout.write(f"  slot {holder.slot}: {label}{ended}: {held}{then}\n")
    return 0


def _watch(directory: Path) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        before, before_ns = region.status(directory), time.monotonic_ns()
        while True:
            time.sleep(1)
            now, now_ns = region.status(directory), time.monotonic_ns()
            _print(now, list(_busy(before, now, now_ns - before_ns)))
            before, before_ns = now, now_ns


def _busy(before: Sequence[GpuStatus], now: Sequence[GpuStatus], elapsed_ns: int) -> Iterator[str]:
    """Processes of a container may work at the same time; the GPU is busy once."""
    for old, new in zip(before, now, strict=True):
        busy_ns = max(new.work.busy_ns - old.work.busy_ns, 0)
        yield f"{min(100 * busy_ns // max(elapsed_ns, 1), 100)}%"


def _print(entries: Sequence[GpuStatus], busy: Sequence[str]) -> None:
    rows = [_HEADINGS]
    for entry, busy_text in zip(entries, busy, strict=True):
        use, gpu = entry.use, entry.gpu
        last = f", last {size_text(use.last_refused_bytes)}" if use.refused_count else ""
        rows.append(
            (
                gpu.uuid,
                size_text(entry.used_bytes),
                size_text(gpu.overhead_bytes),
                size_text(gpu.limit_bytes),
                f"{gpu.core_percent or 100}%{' forced' if gpu.core_forced else ''}",
                busy_text,
                _seconds(entry.work.throttled_ns),
                f"{use.refused_count}{last}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS) - 1)]
    for row in rows:
        fixed = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        sys.stdout.write(f"{fixed}  {row[-1]}\n")
    sys.stdout.flush()


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / _SECOND_NS:.1f}s"


def size_text(amount: int) -> str:
    """Human-readable; exact where that is short: 20GiB, 1537MiB, 512B."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if amount >= size:
            exact = amount % size == 0
            return f"{amount // size}{unit}" if exact else f"{amount / size:.2f}{unit}"
    return f"{amount}B"
