"""The command `gpuslice ps`: programs and containers with limits on this machine, and their use."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuslice.cli.cluster import Cluster, Gpu, Node, Slice
from gpuslice.cli.use import SliceUse
from gpuslice.contract import names
from gpuslice.contract.grant_file import is_cap
from gpuslice.gpu.bookings import Booking, BookingsError, of_machine
from shim import gpus, region

if TYPE_CHECKING:
    from gpuslice.docker.containers import Container

_DESCRIPTION: Final = """\
Show the GPUs of this machine, and the programs and containers that `gpuslice run` limits: memory
used of the limit, compute share of the request, and the part of a second in which launches waited.

A figure that is not known, or that only another user may read, is "-".
"""
_PERIOD_S: Final = 1.0
_SECOND_NS: Final = 1_000_000_000
Key = tuple[str, str]
"""The booking's key and the GPU's UUID."""


def main(arguments: Sequence[str], prog: str) -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(f"{prog} ps", description=_DESCRIPTION, formatter_class=form)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    chosen = parser.parse_args(arguments)
    machine = of_machine(os.environ)
    try:
        with machine.locked():
            booked = machine.live(lambda: None)
        present = () if chosen.output == "json" else gpus.present()
    except (BookingsError, gpus.GpuError) as error:
        sys.stderr.write(f"gpuslice ps: {error}\n")
        return 1
    listed, uses = _containers(booked), _uses(booked)
    if chosen.output == "json":
        rows = [_row(each, listed.get(each.key), uses) for each in booked]
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    else:
        shown_as = {each.key: _name(each, listed.get(each.key)) for each in booked}
        node = Node(platform.node(), [_gpu(gpu, booked, shown_as, uses) for gpu in present])
        from rich.console import Console  # JSON needs no rich

        from gpuslice.cli import screen

        console = Console(highlight=False)
        screen.once(console, Cluster([node], ()), [*_problems()])
    return 0


def _containers(booked: Sequence[Booking]) -> Mapping[str, Container]:
    """Return the containers by key, if there are any and Docker answers this user."""
    if any(each.kind == "container" for each in booked):
        with suppress(ImportError):  # programs need no Docker, and no package for it
            from gpuslice.docker import containers

            with suppress(*containers.ERRORS):
                return {each.key: each for each in containers.listed()}
    return {}


def _name(booking: Booking, container: Container | None) -> str:
    """Return the present name, with the state of a container that does not run."""
    if container is None:
        return booking.label
    return container.name + f" ({container.status})" * (not container.running)


def _uses(booked: Sequence[Booking]) -> Mapping[Key, SliceUse]:
    """Read the use twice, because a rate needs two samples."""
    before, before_ns = dict(_read(booked)), time.monotonic_ns()
    time.sleep(_PERIOD_S if before else 0)
    now, period_ns = dict(_read(booked)), time.monotonic_ns() - before_ns
    return {key: _use(before.get(key, now[key]), now[key], period_ns) for key in now}


def _read(booked: Sequence[Booking]) -> Iterator[tuple[Key, region.GpuStatus]]:
    for each in booked:
        with suppress(region.RegionDirectoryError, OSError):
            for status in region.status(Path(each.directory)):
                yield (each.key, status.gpu.uuid), status


def _use(before: region.GpuStatus, now: region.GpuStatus, period_ns: int) -> SliceUse:
    """The library counts work only where launches are checked."""
    is_counted, work, was = now.work.spent_ns > 0, now.work, before.work
    return SliceUse(
        now.used_bytes,
        now.gpu.limit_bytes,
        (work.spent_ns - was.spent_ns) / period_ns if is_counted else None,
        work.throttled_ns / _SECOND_NS if is_counted else None,
        (work.throttled_ns - was.throttled_ns) / period_ns if is_counted else None,
        now.use.refused_count,
    )


def _problems() -> Iterator[str]:
    """Yield why containers are without their grants, as `gpuslice host` has written it."""
    for file in sorted(Path(names.DOCKER_STATE_DIR).glob(f"*{names.SUFFIX_PROBLEM}")):
        with suppress(OSError):
            yield file.read_text()


def _row(
    booking: Booking, container: Container | None, uses: Mapping[Key, SliceUse]
) -> Mapping[str, object]:
    """Return the booking as JSON. state: Docker's; null if it is not known."""
    parts = [
        {**asdict(part), **asdict(uses.get((booking.key, part.uuid), SliceUse()))}
        for part in booking.parts
    ]
    present = {"name": booking.name, "state": "running" if booking.kind == "program" else None}
    if container is not None:
        present = {"name": container.name, "state": container.status}
    return {**asdict(booking), **present, "parts": parts}


def _gpu(
    gpu: gpus.Gpu,
    booked: Sequence[Booking],
    shown_as: Mapping[str, str],
    uses: Mapping[Key, SliceUse],
) -> Gpu:
    held = [(each, part) for each in booked for part in each.parts if part.uuid == gpu.uuid]
    shown = Gpu(gpu.uuid, gpu.minor, gpu.name, gpu.memory_bytes, healthy=True)
    for each, part in held:
        use = uses.get((each.key, gpu.uuid))
        core = part.core_percent if is_cap(part.core_percent) else None
        shown.slices.append(Slice("", shown_as[each.key], "", part.memory_bytes, core, use))
        shown.granted_bytes += part.memory_bytes
        shown.granted_core += part.core_percent
        if use and use.used_bytes is not None:
            shown.used_bytes = (shown.used_bytes or 0) + use.used_bytes
    return shown
