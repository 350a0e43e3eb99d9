"""The command `python -m shim`: limits a program outside a container, and shows its use."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

from gpuslice.contract import names
from gpuslice.gpu import bookings
from shim import gpus, launch, library, limits, measurement, region, show
from shim.arbiter import child, command

_EPILOG: Final = """examples:
  gpuslice run --memory 20GiB -- python train.py
  gpuslice run --memory 20GiB --core 30 --image pytorch/pytorch -- python train.py
  gpuslice run --memory 50% --gpu 0 -- nvidia-smi
  gpuslice show "$GPUSLICE_DIR"
  gpuslice show --watch /run/gpuslice/0f0f
"""
_PREFIX: Final = "gpuslice-"
"""The prefix of the names of the directories that `shim run` makes for grants."""
_RUN_HELP: Final = """Run CMD so that it, and all that it starts, sees and gets at most --memory of
each GPU. GPUs that --gpu leaves out have no memory at all. The exit status is CMD's; 128 + N
where signal N ended it. With --image, CMD runs in a Docker container under the same limits;
`gpuslice run --image IMAGE --help` describes that.

--core is the program's share of the GPU's time beside other programs of `run` on the same GPU.
--compute says how it shares that time:
  fair        it gets its share, and also the time that the others leave (default)
  capped      it gets its share and no more, also while no other program uses the GPU
  turns       it submits work only while no other program does: exact times, longer waits
  background  it has no share, and submits work only while others pause or are hardly slowed"""


def main(arguments: Sequence[str], prog: str = "python -m shim") -> int:
    """Return the exit status: the command's own, or 2 if it was not started."""
    options = _parser(prog).parse_args(arguments)
    try:
        status: int = options.action(options)
        return status
    except (
        limits.UsageError,
        bookings.BookingsError,
        gpus.GpuError,
        library.LibraryError,
        library.DriverError,
        region.RegionDirectoryError,
    ) as error:
        sys.stderr.write(f"gpuslice: {error}\n")
        return 2


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Limit a program's share of the GPU, without a container.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="run | show | path | arbiter")
    run = commands.add_parser(
        "run",
        help="run a command under a limit",
        usage="%(prog)s --memory SIZE [--core PERCENT] [--compute fair|capped|turns|background]"
        " [--gpu UUID|INDEX]..."
        " [--context-bytes SIZE] [--code-bytes SIZE] [--managed-memory charged|free] [--strict]"
        " -- CMD [ARG]...\n       gpuslice run --memory SIZE [OPTION]... --image IMAGE"
        " [DOCKER OPTION]... [-- CMD [ARG]...]",
        description=_RUN_HELP,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_options(run)
    shown = commands.add_parser("show", help=show.ABOUT)
    show.configure(shown)
    shown.set_defaults(action=show.run)
    about = "the path of libvgpu.so, for the node agent's --library"
    path = commands.add_parser("path", help=about, description=f"Print {about}.")
    path.set_defaults(action=_path)
    turns = commands.add_parser(
        "arbiter",
        help=command.ABOUT + "; the node agent and `run` start it",
        description=command.DESCRIPTION,
    )
    command.configure(turns)
    turns.set_defaults(action=command.run)
    return parser


def _add_options(run: argparse.ArgumentParser) -> None:
    limits.add_options(run)
    run.add_argument(
        "--strict",
        action="store_true",
        help="put forwarders before the driver's libraries, too: for what no preload reaches"
        " (a library that needs the driver, opened by dlmopen; docs/library.md)",
    )
    run.add_argument("command", nargs="+", metavar="CMD", help="after --, with its arguments")
    run.set_defaults(action=_run)


def _run(options: argparse.Namespace) -> int:
    if Path(names.CONTAINER_DIR).is_dir():
        raise limits.UsageError(
            f"run: this container already has limits ({names.CONTAINER_DIR}); run the command"
            " without gpuslice, or outside the container"
        )
    preload = str(library.find())
    if any(separator in preload for separator in " :"):
        raise limits.UsageError(
            f"run: invalid library path {preload!r}: must have no blank or colon for LD_PRELOAD"
        )
    parts = limits.parts(options)
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX, dir=region.parent(os.environ)) as directory,
        _booked(options.command[0], parts, directory) as started,
    ):
        granted = limits.granted(options, parts)
        region.create(Path(directory), granted)
        environment = _environment(os.environ, preload, directory)
        if options.strict:
            environment = _with_forwarders(environment, Path(directory), Path(preload))
        limited = any(gpu.core_limited for gpu in granted)
        try:
            with measurement.measuring(Path(directory)), _arbiting(Path(directory), limited):
                return launch.run(options.command, environment, started)
        except OSError as error:
            sys.stderr.write(f"gpuslice: {options.command[0]}: {error.strerror}\n")
            return 127 if isinstance(error, FileNotFoundError) else 126


@contextmanager
def _booked(
    command: str, parts: Mapping[gpus.Gpu, bookings.Part], directory: str
) -> Iterator[Callable[[int], None]]:
    """Book the parts for this process while the block runs. Yields a function that hands the
    booking to the command's process, because the command outlasts a kill of this process."""
    machine, key, name = bookings.of_machine(os.environ), Path(directory).name, Path(command).name
    capacity = {gpu.uuid: gpu.memory_bytes for gpu in parts}

    def book(pid: int) -> None:
        ticks = bookings.started_ticks(pid) or 0
        booking = bookings.Booking(key, name, [*parts.values()], pid, ticks, "program", directory)
        with machine.locked():
            machine.book(booking, capacity, lambda: None)

    def hand_over(pid: int) -> None:
        with suppress(bookings.BookingsError):
            book(pid)

    book(os.getpid())
    try:
        yield hand_over
    finally:
        with suppress(bookings.BookingsError), machine.locked():
            machine.free(key)


def _arbiting(directory: Path, limited: bool) -> AbstractContextManager[None]:
    """Run an arbiter for all programs of this user. `run` without a limit of compute starts none:
    the arbiter that a program with such a limit has started serves it too."""
    return child.arbiting(directory.parent, _PREFIX) if limited else nullcontext()


def _environment(outer: Mapping[str, str], preload: str, directory: str) -> Mapping[str, str]:
    others = outer.get("LD_PRELOAD")
    return {
        **outer,
        "LD_PRELOAD": f"{preload}:{others}" if others else preload,
        names.ENV_DIR: directory,
    }


def _with_forwarders(outer: Mapping[str, str], directory: Path, ours: Path) -> Mapping[str, str]:
    forwarders = directory / names.DIR_DRIVER
    library.place_forwarders(forwarders, ours)
    others = outer.get("LD_LIBRARY_PATH")
    path = f"{forwarders}:{others}" if others else str(forwarders)
    return {**outer, "LD_LIBRARY_PATH": path}


def _path(_: argparse.Namespace) -> int:
    sys.stdout.write(f"{library.find()}\n")
    return 0
