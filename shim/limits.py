"""The options of `gpuslice run` that state a limit, and the grant that they name.

A container of `gpuslice run --image` has the same options.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from gpuslice.contract import grant_file, names, overhead, quantity
from gpuslice.contract.grant_file import Policy
from gpuslice.gpu.bookings import Part
from shim import gpus
from shim.show import size_text

_WHOLE_CORE_PERCENT: Final = 100


class UsageError(Exception):
    """An option is not valid. The text names the option, its value and the valid values."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory", required=True, metavar="SIZE", help="20GiB, 512MiB, bytes, or 50%%"
    )
    parser.add_argument(
        "--core", metavar="PERCENT", help="1 to 100 (default: 100, of which nothing is booked)"
    )
    parser.add_argument(
        "--compute",
        choices=[*Policy],
        default=Policy.FAIR,
        help="how the program shares the GPU's time; see above (default: fair)",
    )
    parser.add_argument(
        "--gpu",
        action="append",
        default=[],
        metavar="UUID|INDEX",
        help="a GPU to use; repeat for more (default: all)",
    )
    parser.add_argument(
        "--context-bytes",
        metavar="SIZE",
        help="what each CUDA context is charged, 300MiB for example (default: measured, in a"
        " process made for it)",
    )
    parser.add_argument(
        "--code-bytes",
        default=str(overhead.CODE_BYTES),
        metavar="SIZE",
        help="what each process is charged for code beside its context, until the second in which a"
        f" measurement has seen it (default: {size_text(overhead.CODE_BYTES)})",
    )
    parser.add_argument(
        "--managed-memory",
        choices=("charged", "free"),
        default="charged",
        help="free: cuMemAllocManaged may exceed the limit and the GPU; its resident memory is"
        " measured (default: charged in full)",
    )


def parts(options: argparse.Namespace) -> Mapping[gpus.Gpu, Part]:
    """Return the parts of this machine's GPUs that the options name. Raises UsageError, and
    GpuError if there is no such GPU."""
    core_percent = 0 if options.core is None else _percent("--core", options.core)
    chosen = gpus.choose(gpus.present(), options.gpu)
    return {gpu: Part(gpu.uuid, _memory(options.memory, gpu), core_percent) for gpu in chosen}


def granted(
    options: argparse.Namespace, parts: Mapping[gpus.Gpu, Part]
) -> Sequence[grant_file.Gpu]:
    """Return the grant of the parts. Call it when they are booked, because it may create a CUDA
    context. Raises UsageError."""
    return [
        grant_file.Gpu(
            gpu.uuid,
            part.memory_bytes,
            part.core_percent or _WHOLE_CORE_PERCENT,
            gpu.minor,
            context_bytes=_context_bytes(options.context_bytes, gpu),
            code_bytes=_size("--code-bytes", options.code_bytes, gpu),
            managed_free=options.managed_memory == "free",
            policy=Policy(options.compute),
        )
        for gpu, part in parts.items()
    ]


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
