"""What the driver answers to the queries of processes.py and context_size.py.

The queries need pynvml, which takes 5 MiB. A program that only reads answers imports this module
alone. A process's memory includes its contexts, code and allocations. NVML uses process numbers of
the initial PID namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_CONTEXT_MAX_BYTES: Final = 1 << 30
"""Maximum plausible size of a context. Contexts take a few hundred MiB."""

Usage = Mapping[str, Mapping[int, int | None] | None]
"""GPU UUID -> process number -> bytes. A process is None if NVML has no value for it, and a GPU is
None if it did not answer."""

Utilization = Mapping[str, Mapping[int, int] | None]
"""GPU UUID -> process number -> percent of the latest sample period (1/6 s to 1 s) in which the
process's kernels ran. A process without kernels is missing. A GPU without values (MIG) is None."""


def by_pid(by_text: Mapping[str, Any] | None) -> dict[int, Any] | None:
    """Convert the keys of one GPU's JSON object from text to process numbers. Raises ValueError."""
    return None if by_text is None else {int(pid): value for pid, value in by_text.items()}


class UnknownSizeError(Exception):
    """The size cannot be determined; the text states the cause."""


def context_bytes(answer: bytes | str) -> int:
    """Parse the output of context_size.py. Raises UnknownSizeError for an implausible size."""
    try:
        size_bytes = int(answer)
    except ValueError as error:
        raise UnknownSizeError(f"unreadable answer: {answer[:80]!r}") from error
    if not 0 < size_bytes <= _CONTEXT_MAX_BYTES:
        raise UnknownSizeError(f"NVML reports {size_bytes} bytes for a context: implausible")
    return size_bytes
