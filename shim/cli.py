"""The command `python -m shim`: limits a program outside a container, and shows its use."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

from gpuslice.contract import grant_file, names, overhead, quantity
from gpuslice.contract.grant_file import Policy
from shim import gpus, launch, library, measurement, region, show
from shim.arbiter import child, command
from shim.show import size_text

_EPILOG: Final = """examples:
  gpuslice run --memory 20GiB -- python train.py
  gpuslice run --memory 50% --gpu 0 -- nvidia-smi
  gpuslice show "$GPUSLICE_DIR"
  gpuslice show --watch /run/gpuslice/0f0f
"""
_PREFIX: Final = "gpuslice-"
"""The prefix of the names of the directories that `shim run` makes for grants."""
_RUN_HELP: Final = """Run CMD so that it, and all that it starts, sees and gets at most --memory of
each GPU. GPUs that --gpu leaves out have no memory at all. The exit status is CMD's; 128 + N
where signal N ended it.

--core is the program's share of the GPU's time beside other programs of `run` on the same GPU.
--core-policy says how it shares that time:
  fair        it gets its share, and also the time that the others leave (default)
  capped      it gets its share and no more, also while no other program uses the GPU
  turns       it submits work only while no other program does: exact times, longer waits
  background  it has no share, and submits work only while others pause or are hardly slowed"""


class UsageError(Exception):
    """An option is not valid. The text names the option, its value and the valid values."""


def main(arguments: Sequence[str], prog: str = "python -m shim") -> int:
    """Return the exit status: the command's own, or 2 if it was not started."""
    options = _parser(prog).parse_args(arguments)
    try:
        status: int = options.action(options)
        return status
    except (
        UsageError,
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
        usage="%(prog)s --memory SIZE [--core PERCENT] [--core-policy fair|capped|turns|background]"
        " [--gpu UUID|INDEX]..."
        " [--context-bytes SIZE] [--code-bytes SIZE] [--managed-memory charged|free] [--strict]"
        " -- CMD [ARG]...",
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
    run.add_argument(
        "--memory", required=True, metavar="SIZE", help="20GiB, 512MiB, bytes, or 50%%"
    )
    run.add_argument("--core", default="100", metavar="PERCENT", help="1 to 100 (default: 100)")
    run.add_argument(
        "--core-policy",
        choices=[*Policy],
        default=Policy.FAIR,
        help="how the program shares the GPU's time; see above (default: fair)",
    )
    run.add_argument(
        "--gpu",
        action="append",
        default=[],
        metavar="UUID|INDEX",
        help="a GPU to use; repeat for more (default: all)",
    )
    run.add_argument(
        "--context-bytes",
        metavar="SIZE",
        help="what each CUDA context is charged, 300MiB for example (default: measured, in a"
        " process made for it)",
    )
    run.add_argument(
        "--code-bytes",
        default=str(overhead.CODE_BYTES),
        metavar="SIZE",
        help="what each process is charged for code beside its context, until the second in which a"
        f" measurement has seen it (default: {size_text(overhead.CODE_BYTES)})",
    )
    run.add_argument(
        "--managed-memory",
        choices=("charged", "free"),
        default="charged",
        help="free: cuMemAllocManaged may exceed the limit and the GPU; its resident memory is"
        " measured (default: charged in full)",
    )
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
        raise UsageError(
            f"run: this container already has limits ({names.CONTAINER_DIR}); run the command"
            " without gpuslice, or outside the container"
        )
    preload = str(library.find())
    if any(separator in preload for separator in " :"):
        raise UsageError(
            f"run: invalid library path {preload!r}: must have no blank or colon for LD_PRELOAD"
        )
    core_percent = _percent("--core", options.core)
    chosen = gpus.choose(gpus.present(), options.gpu)
    limits = [_memory(options.memory, gpu) for gpu in chosen]
    granted = [
        grant_file.Gpu(
            gpu.uuid,
            limit_bytes,
            core_percent,
            gpu.minor,
            context_bytes=_context_bytes(options.context_bytes, gpu),
            code_bytes=_size("--code-bytes", options.code_bytes, gpu),
            managed_free=options.managed_memory == "free",
            policy=Policy(options.core_policy),
        )
        for gpu, limit_bytes in zip(chosen, limits, strict=True)
    ]
    parent, limited = region.parent(os.environ), any(gpu.core_limited for gpu in granted)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent) as directory:
        region.create(Path(directory), granted)
        environment = _environment(os.environ, preload, directory)
        if options.strict:
            environment = _with_forwarders(environment, Path(directory), Path(preload))
        try:
            with measurement.measuring(Path(directory)), _arbiting(Path(directory), limited):
                return launch.run(options.command, environment)
        except OSError as error:
            sys.stderr.write(f"gpuslice: {options.command[0]}: {error.strerror}\n")
            return 127 if isinstance(error, FileNotFoundError) else 126


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


def _percent(option: str, text: str) -> int:
    number = text.removesuffix("%")
    if not (number.isascii() and number.isdecimal() and len(number) <= 3):
        number = "0"
    if not 1 <= int(number) <= 100:
        raise UsageError(f"{option}: invalid value {text!r}: must be 1 to 100 percent")
    return int(number)


def _memory(text: str, gpu: gpus.Gpu) -> int:
    """Return the bytes of one GPU that `text` states. The unit may be GiB as well as Gi."""
    if text.endswith("%"):
        return quantity.share_of(gpu.memory_bytes, _percent("--memory", text))
    parsed = quantity.parse(text.removesuffix("B"))
    if not isinstance(parsed, quantity.Value):
        raise UsageError(
            f"--memory: invalid value {text!r}: must be a size, as 20GiB, 512MiB, bytes, or 50%"
        )
    if not 1 <= parsed.amount <= gpu.memory_bytes:
        raise UsageError(f"--memory: invalid value {text!r}: must be 1 to {_all_of(gpu)}")
    return parsed.amount


def _size(option: str, text: str, gpu: gpus.Gpu) -> int:
    parsed = quantity.parse(text.removesuffix("B"))
    if not isinstance(parsed, quantity.Value) or not 0 <= parsed.amount <= gpu.memory_bytes:
        raise UsageError(f"{option}: invalid value {text!r}: must be 0 to {_all_of(gpu)}")
    return parsed.amount


def _context_bytes(text: str | None, gpu: gpus.Gpu) -> int:
    """Return the size in `text`. If it is None, measure it. If that fails, warn and assume a
    size."""
    if text is not None:
        return _size("--context-bytes", text, gpu)
    try:
        return gpus.context_bytes(gpu)
    except gpus.GpuError as error:
        assumed = names.CONTEXT_BYTES_ASSUMED
        sys.stderr.write(
            f"gpuslice: --context-bytes: {size_text(assumed)} is assumed for {gpu.uuid}: {error}\n"
        )
        return assumed


def _all_of(gpu: gpus.Gpu) -> str:
    return f"{quantity.format_binary(gpu.memory_bytes)}B, the memory of {gpu.uuid}"


def _path(_: argparse.Namespace) -> int:
    sys.stdout.write(f"{library.find()}\n")
    return 0
