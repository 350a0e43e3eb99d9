"""Numbers for values that GPUs have in common. A number is reused once no GPU has its value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Generic, TypeVar

_Value = TypeVar("_Value", bound=Hashable)


class Numbering(ABC, Generic[_Value]):
    """Number 0 is that of `first`, which always exists."""

    def __init__(self, first: _Value) -> None:
        self._values = [first]
        """By number."""
        self._number_of = {first: 0}
        self._gpus = [1]
        """By number, the count of GPUs with the value."""
        self._unused: list[int] = []

    def __len__(self) -> int:
        return len(self._values)

    def intern(self, value: _Value) -> int:
        """The number of the value; counts one more GPU."""
        number = self._number_of.get(value)
        if number is None:
            if not self._unused:
                self._unused.append(len(self._values))
                self._values.append(value)
                self._gpus.append(0)
            number = self._unused.pop()
            self._values[number] = value
            self._number_of[value] = number
            self._add(number)
        self._gpus[number] += 1
        return number

    def release(self, value: _Value) -> None:
        """Counts one GPU less."""
        number = self._number_of[value]
        self._gpus[number] -= 1
        if not self._gpus[number]:
            del self._number_of[value]
            self._unused.append(number)

    @abstractmethod
    def _add(self, number: int) -> None:
        """The number has a new value."""
