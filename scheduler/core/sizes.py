"""Numbers the distinct sizes of the fleet's GPUs, and computes the bytes of a ratio for each size.

The bytes are exact, because they are computed with Python's integers. This happens once per size,
and a fleet has few sizes. Each GPU needs only a look-up by its size's number.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduler.core.numbering import Numbering
from scheduler.core.request import share_of

NO_GPU: Final = 0
"""The number of a slot without a GPU. No share fits there."""
MAX_RATIOS: Final = 64
"""The number of cached ratios. The least recently used one is dropped for a new one."""
_NEVER: Final = 2**62


class Sizes(Numbering[int]):
    def __init__(self) -> None:
        super().__init__(0)
        self._shares: dict[tuple[int, int], NDArray[np.int64]] = {}

    def shares(self, ratio: Fraction) -> NDArray[np.int64]:
        """Return the bytes of the ratio for each size, by the size's number."""
        key = ratio.as_integer_ratio()
        shares = self._shares.pop(key, None)
        if shares is None:
            shares = np.array([_NEVER, *(share_of(size, ratio) for size in self._values[1:])])
        self._shares[key] = shares
        if len(self._shares) > MAX_RATIOS:
            del self._shares[next(iter(self._shares))]
        return shares

    def only(self) -> int | None:
        """Return the size in bytes if all GPUs of the fleet have the same one, else None."""
        return next(reversed(self._number_of)) if len(self._number_of) == 2 else None

    def _add(self, number: int) -> None:
        self._shares.clear()
