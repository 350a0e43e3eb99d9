"""The models and label sets of GPUs, numbered, and which of them a selector matches.

A number is reused once no GPU has that model and these labels. Results for selectors are cached and
updated with each new set, since all GPUs may have different labels and selectors are evaluated
often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduler.core.request import Requirement

MAX_SELECTORS: Final = 64
"""Cached selectors; the least recently used ones are dropped."""

_Key = tuple[str, frozenset[tuple[str, str]]]
"""The model, and the labels."""


class LabelSets:
    """Set 0 is the empty set of no model, which always exists."""

    def __init__(self) -> None:
        self._sets: list[tuple[Mapping[str, str], str]] = [({}, "")]
        self._number_of: dict[_Key, int] = {_key({}, ""): 0}
        self._gpus: list[int] = [1]
        """By number, the count of GPUs of the set."""
        self._unused: list[int] = []
        self._matched: dict[tuple[Requirement, ...], NDArray[np.bool_]] = {}

    def __len__(self) -> int:
        return len(self._sets)

    def intern(self, labels: Mapping[str, str], model: str) -> int:
        """The number of the set; counts one more GPU."""
        key = _key(labels, model)
        number = self._number_of.get(key)
        if number is None:
            number = self._unused.pop() if self._unused else len(self._sets)
            if number == len(self._sets):
                self._sets.append(({}, ""))
                self._gpus.append(0)
            self._number_of[key] = number
            self._sets[number] = (dict(labels), model)
            self._match(number)
        self._gpus[number] += 1
        return number

    def release(self, labels: Mapping[str, str], model: str) -> None:
        """Counts one GPU less."""
        key = _key(labels, model)
        number = self._number_of[key]
        self._gpus[number] -= 1
        if not self._gpus[number]:
            del self._number_of[key]
            self._unused.append(number)

    def selected(self, selector: tuple[Requirement, ...]) -> NDArray[np.bool_]:
        """[numbers]: which sets match the whole selector."""
        matched = self._matched.pop(selector, None)
        if matched is None:
            matched = np.array([_matches(selector, *each) for each in self._sets], np.bool_)
        self._matched[selector] = matched
        if len(self._matched) > MAX_SELECTORS:
            del self._matched[next(iter(self._matched))]
        return matched[: len(self._sets)]

    def _match(self, number: int) -> None:
        for selector, matched in self._matched.items():
            if number >= len(matched):
                more = np.zeros(len(matched) + 64, np.bool_)
                matched = self._matched[selector] = np.concatenate([matched, more])
            matched[number] = _matches(selector, *self._sets[number])


def _key(labels: Mapping[str, str], model: str) -> _Key:
    return model, frozenset(labels.items())


def _matches(selector: Sequence[Requirement], labels: Mapping[str, str], model: str) -> bool:
    return all(line.matches(labels, model) for line in selector)
