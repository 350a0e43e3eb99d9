"""The distinct sizes of the fleet's GPUs, numbered, and the bytes that a ratio is of each.

Exact for every ratio, since the products are Python's integers; a fleet has few sizes, so the
columns need one look-up per GPU at most.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduler.core.numbering import Numbering
from scheduler.core.request import share_of

NO_GPU: Final = 0
"""The number where there is no GPU, of which no share fits."""
MAX_RATIOS: Final = 64
"""Cached ratios; the least recently used ones are dropped."""
_NEVER: Final = 2**62


class Sizes(Numbering[int]):
    def __init__(self) -> None:
        super().__init__(0)
        self._shares: dict[tuple[int, int], NDArray[np.int64]] = {}

    def shares(self, ratio: Fraction) -> NDArray[np.int64]:
        """[numbers]: the bytes of the ratio."""
        key = ratio.as_integer_ratio()
        shares = self._shares.pop(key, None)
        if shares is None:
            shares = np.array([_NEVER, *(share_of(size, ratio) for size in self._values[1:])])
        self._shares[key] = shares
        if len(self._shares) > MAX_RATIOS:
            del self._shares[next(iter(self._shares))]
        return shares

    def only(self) -> int | None:
        """The size in bytes if all GPUs have one."""
        return next(reversed(self._number_of)) if len(self._number_of) == 2 else None

    def _add(self, number: int) -> None:
        self._shares.clear()
