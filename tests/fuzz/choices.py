"""Decisions read from fuzz input: each byte string describes one scenario.

Reading past the end gives zeros. So every input is valid, and a shorter input is simpler.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TypeVar

_T = TypeVar("_T")


class Choices:
    """A cursor over the input."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def left(self) -> int:
        return len(self._data)

    def take(self, count: int) -> bytes:
        """Return at most `count` bytes."""
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    def rest(self) -> bytes:
        return self.take(self.left)

    def whole(self, size: int) -> int:
        """Return an integer of `size` bytes."""
        return int.from_bytes(self.take(size).ljust(size, b"\0"))

    def byte(self) -> int:
        return self.whole(1)

    def one_of(self, items: Sequence[_T]) -> _T:
        return items[self.byte() % len(items)]

    def blob(self) -> bytes:
        """Return a byte string that is preceded by its length."""
        return self.take(self.byte())

    def text(self) -> str:
        """Return a text, which may contain lone surrogates, as JSON may."""
        return self.blob().decode("utf-8", "surrogateescape")


def cut(data: bytes, choices: Choices) -> Iterator[bytes]:
    """Yield `data` in up to eight pieces. `choices` determines where to cut."""
    places = {choices.whole(2) % (len(data) + 1) for _ in range(choices.byte() % 8)}
    for begin, end in itertools.pairwise(sorted({0, len(data), *places})):
        yield data[begin:end]
