"""Numbers the distinct values of GPUs, such as sizes. A number without GPUs is used again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Generic, TypeVar

_Value = TypeVar("_Value", bound=Hashable)


class Numbering(ABC, Generic[_Value]):
    """The numbers of values. Number 0 belongs to `first` and is never released."""

    def __init__(self, first: _Value) -> None:
        self._values = [first]
        """The value of each number."""
        self._number_of = {first: 0}
        self._gpus = [1]
        """The count of GPUs with the value of each number."""
        self._unused: list[int] = []

    def __len__(self) -> int:
        return len(self._values)

    def intern(self, value: _Value) -> int:
        """Count one more GPU with the value, and return the value's number."""
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
        """Count one GPU less with the value."""
        number = self._number_of[value]
        self._gpus[number] -= 1
        if not self._gpus[number]:
            del self._number_of[value]
            self._unused.append(number)

    @abstractmethod
    def _add(self, number: int) -> None:
        """Update the data of the subclass, after this number got a new value."""
