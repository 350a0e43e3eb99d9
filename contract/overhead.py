"""What the driver itself holds of a GPU for one container: contexts, code, local memory.

No call of the driver says it, so it is the difference of two figures taken from outside: what NVML
says that the container's processes hold, less what their region charges. The node agent and
`python -m shim run` sample both and write the result into the grant, where it lowers the limit.

Pure. The least of the last WINDOW samples counts: what stays is counted, what passes is not (a free
that the driver completes later, an allocation that one of the two figures already has). So an error
favours the container.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

WINDOW: Final = 3
PERIOD_S: Final = 1.0
"""From one sample to the next."""
CODE_BYTES: Final = 64 << 20
"""Default of `code_bytes`: what a process is charged for code until a measurement has seen it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a container's share of a GPU, in bytes.

    held: the sum of NVML's figures for its processes. imported: what of it NVML may count twice,
    because one process exports it and another imports it. charged: the region's counter, the larger
    of a look before NVML was asked and one after.
    """

    held_bytes: int
    imported_bytes: int
    charged_bytes: int

    @property
    def overhead_bytes(self) -> int:
        """What nothing in the region explains."""
        return max(0, self.held_bytes - self.imported_bytes - self.charged_bytes)


class Overhead:
    """The measured overhead of one container on one GPU."""

    def __init__(self) -> None:
        self._samples: deque[int] = deque(maxlen=WINDOW)

    def add(self, sample: Sample) -> int | None:
        """The overhead in bytes after this sample; None until there are WINDOW of them."""
        self._samples.append(sample.overhead_bytes)
        return min(self._samples) if len(self._samples) == WINDOW else None
