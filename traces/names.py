"""Maps each handle and address of the recording to a slot, which has its value in the replay.

Drivers reuse handles and addresses, so a value means the result of the latest call that returned
it. Calls that free a value are an exception, because a call is written when it returns. If one
thread frees an address and another thread gets the same address at once, the trace may have the
second call first. Therefore a call frees the oldest result with that value that is not yet freed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import Final, NamedTuple

Found = tuple[int, int]
"""A slot, and an offset from the slot's value."""


class _Made(NamedTuple):
    slot: int
    size_bytes: int


class Names:
    def __init__(self) -> None:
        self._latest: dict[int, _Made] = {}
        self._living: dict[int, list[_Made]] = {}
        self._addresses: Final[list[int]] = []

    def make(self, value: int, slot: int, size_bytes: int = 0) -> None:
        """Record that a call returned the value. size_bytes: the memory's size; 0 for a handle."""
        made = _Made(slot, size_bytes)
        if size_bytes:
            # Forget freed addresses inside this memory: the addresses now belong to it.
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
        """Return the slot and offset of a value that a call uses; None if no call returned it."""
        if value in self._latest:
            return self._latest[value].slot, 0
        below = bisect_right(self._addresses, value) - 1
        if below < 0:
            return None
        base = self._addresses[below]
        made = self._latest[base]
        return (made.slot, value - base) if value - base < made.size_bytes else None

    def free(self, value: int) -> Found | None:
        """Return the slot and offset of a value that a call frees."""
        living = self._living.get(value)
        if not living:
            return self.find(value)
        return living.pop(0).slot, 0
