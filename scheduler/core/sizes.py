"""The distinct sizes of the fleet's GPUs, numbered, and the bytes that a ratio is of each.

Exact for every ratio, since the products are Python's integers; a fleet has few sizes, so the
columns need one look-up per GPU at most. A number is reused once no GPU has its size.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduler.core.request import share_of

NO_GPU: Final = 0
"""The number where there is no GPU, of which no share fits."""
MAX_RATIOS: Final = 64
"""Cached ratios; the least recently used ones are dropped."""
_NEVER: Final = 2**62


class Sizes:
    """See the module."""

    def __init__(self) -> None:
        self._sizes: list[int] = [0]
        self._number_of: dict[int, int] = {}
        self._gpus: list[int] = [0]
        """By number, the count of GPUs with the size."""
        self._unused: list[int] = []
        self._shares: dict[tuple[int, int], NDArray[np.int64]] = {}

    def __len__(self) -> int:
        """Number of sizes in use."""
        return len(self._number_of)

    def intern(self, total_bytes: int) -> int:
        """The number of the size; counts one more GPU."""
        number = self._number_of.get(total_bytes)
        if number is None:
            number = self._unused.pop() if self._unused else len(self._sizes)
            if number == len(self._sizes):
                self._sizes.append(0)
                self._gpus.append(0)
            self._number_of[total_bytes] = number
            self._sizes[number] = total_bytes
            self._shares.clear()
        self._gpus[number] += 1
        return number

    def release(self, total_bytes: int) -> None:
        """Counts one GPU less."""
        number = self._number_of[total_bytes]
        self._gpus[number] -= 1
        if not self._gpus[number]:
            del self._number_of[total_bytes]
            self._unused.append(number)

    def shares(self, ratio: Fraction) -> NDArray[np.int64]:
        """[numbers]: the bytes of the ratio."""
        key = ratio.as_integer_ratio()
        shares = self._shares.pop(key, None)
        if shares is None:
            shares = np.array([_NEVER, *(share_of(size, ratio) for size in self._sizes[1:])])
        self._shares[key] = shares
        if len(self._shares) > MAX_RATIOS:
            del self._shares[next(iter(self._shares))]
        return shares

    def only(self) -> int | None:
        """The size in bytes if all GPUs have one."""
        return next(iter(self._number_of)) if len(self._number_of) == 1 else None

    def share_of_all(self, ratio: Fraction) -> int | None:
        """The bytes of the ratio if all GPUs have one size."""
        size = self.only()
        return None if size is None else share_of(size, ratio)
