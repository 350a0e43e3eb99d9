"""Maps a value of the recording to the replay's: handles and addresses.

Drivers reuse handles and addresses, so a value names the result of the latest call that returned
it. A call that frees it is an exception: a call is written when it returns, and if one thread frees
an address and another one gets it at once, the second may be written first. So the oldest one not
yet freed is freed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import Final, NamedTuple

Found = tuple[int, int]
"""A slot, and an offset into what it points to."""


class _Made(NamedTuple):
    slot: int
    size_bytes: int


class Names:
    def __init__(self) -> None:
        self._latest: dict[int, _Made] = {}
        self._living: dict[int, list[_Made]] = {}
        self._addresses: Final[list[int]] = []

    def make(self, value: int, slot: int, size_bytes: int = 0) -> None:
        """A call returned the value: memory of that size, or 0 for a handle."""
        made = _Made(slot, size_bytes)
        if size_bytes:
            # Addresses inside are inside other memory from now on.
            first = bisect_right(self._addresses, value)
            last = bisect_left(self._addresses, value + size_bytes)
            for address in self._addresses[first:last]:
                if not self._living[address]:
                    del self._latest[address]
                    self._addresses.remove(address)
            if value not in self._latest:
                insort(self._addresses, value)
        self._latest[value] = made
        self._living.setdefault(value, []).append(made)

    def find(self, value: int) -> Found | None:
        """The value's meaning in a call; None if no call returned it."""
        if value in self._latest:
            return self._latest[value].slot, 0
        below = bisect_right(self._addresses, value) - 1
        if below < 0:
            return None
        base = self._addresses[below]
        made = self._latest[base]
        return (made.slot, value - base) if value - base < made.size_bytes else None

    def free(self, value: int) -> Found | None:
        """The value's meaning in a call that frees it."""
        living = self._living.get(value)
        if not living:
            return self.find(value)
        return living.pop(0).slot, 0
