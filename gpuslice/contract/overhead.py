"""Overhead: GPU memory that the driver holds for one container (contexts, code, local memory).

No driver call reports the overhead. It is the memory that NVML reports for the container's
processes, less the charge in their region. The node agent and `gpuslice run` sample both
values and write the overhead into the grant, where it lowers the limit.

Pure. The overhead is the minimum of the last WINDOW samples. Memory that the driver frees a little
later therefore does not count. Neither does an allocation that only one of the two values includes
yet. A wrong result is too small, which favours the container.
"""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW: Final = 3
PERIOD_S: Final = 1.0
"""Interval between samples."""
CODE_BYTES: Final = 64 << 20
"""Default of a grant's `code_bytes`: the charge for a process's code until it is measured."""


class Overhead:
    """The measured overhead of one container on one GPU."""

    def __init__(self) -> None:
        self._samples: deque[int] = deque(maxlen=WINDOW)

    def add(self, held_bytes: int, charged_bytes: int) -> int | None:
        """Add a sample. Return the overhead in bytes, or None if there are not WINDOW samples yet.

        held_bytes: sum of NVML's values for the processes. If a process exports memory and another
        imports it, both NVML and the region count it once. charged_bytes: the region's counter
        without the floats, the larger of its values before and after the NVML query.
        """
        self._samples.append(max(0, held_bytes - charged_bytes))
        return min(self._samples) if len(self._samples) == WINDOW else None
