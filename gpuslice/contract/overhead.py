"""Overhead: GPU memory that the driver holds for one container (contexts, code, local memory).

No driver call reports it. It is the memory that NVML reports for the container's processes, less
the charge in their region. The node agent and `python -m shim run` sample both values and write the
result into the grant, where it lowers the limit.

Pure. The result is the minimum of the last WINDOW samples, so that only persistent memory counts
and transient memory does not (a free that the driver completes later, an allocation that only one
of the two values includes yet). Errors therefore favour the container.
"""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW: Final = 3
PERIOD_S: Final = 1.0
"""Interval between samples."""
CODE_BYTES: Final = 64 << 20
"""Default of `code_bytes`: a process's charge for code until a measurement includes it."""


class Overhead:
    """The measured overhead of one container on one GPU."""

    def __init__(self) -> None:
        self._samples: deque[int] = deque(maxlen=WINDOW)

    def add(self, held_bytes: int, charged_bytes: int) -> int | None:
        """Add a sample: what no charge in the region accounts for. Return the overhead in bytes;
        None until there are WINDOW samples.

        held_bytes: sum of NVML's values for the processes. NVML counts memory that one process
        exports and another imports once, as the region does. charged_bytes: the region's counter,
        the larger of two reads, one before the NVML query and one after.
        """
        self._samples.append(max(0, held_bytes - charged_bytes))
        return min(self._samples) if len(self._samples) == WINDOW else None
