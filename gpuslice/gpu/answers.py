"""Answers of the queries of the driver: processes.py and context_size.py.

Separate from the queries, because pynvml takes 5 MiB, which a reader of answers does not need. The
memory of a process is that of contexts, code and allocations. NVML uses process numbers of the
initial PID namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_CONTEXT_MAX_BYTES: Final = 1 << 30
"""A larger value is treated as an error: contexts take a few hundred MiB."""

Usage = Mapping[str, Mapping[int, int | None] | None]
"""GPU UUID -> process number -> bytes. None for a process: NVML has no value for it. None for a
GPU: it did not answer."""

Utilization = Mapping[str, Mapping[int, int] | None]
"""GPU UUID -> process number -> percent of the latest sample period (1/6 s to 1 s) in which kernels
of it ran; a process without any is missing. None for a GPU: it has no such figures (MIG)."""


def by_pid(by_text: Mapping[str, Any] | None) -> dict[int, Any] | None:
    """Convert a JSON object of one GPU, whose keys are text. Raises ValueError."""
    return None if by_text is None else {int(pid): value for pid, value in by_text.items()}


class UnknownSizeError(Exception):
    """The size cannot be determined; the text states the cause."""


def context_bytes(answer: bytes | str) -> int:
    """Parse the output of context_size.py. Raises UnknownSizeError if it is implausible."""
    try:
        size_bytes = int(answer)
    except ValueError as error:
        raise UnknownSizeError(f"unreadable answer: {answer[:80]!r}") from error
    if not 0 < size_bytes <= _CONTEXT_MAX_BYTES:
        raise UnknownSizeError(f"NVML reports {size_bytes} bytes for a context: implausible")
    return size_bytes
