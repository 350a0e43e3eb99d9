"""The models and label sets of GPUs, numbered, and which of them a selector matches.

Results for selectors are cached and updated with each new set, since all GPUs may have different
labels and selectors are evaluated often.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduler.core.numbering import Numbering
from scheduler.core.request import Requirement

MAX_SELECTORS: Final = 64
"""Cached selectors; the least recently used ones are dropped."""

LabelSet = tuple[str, frozenset[tuple[str, str]]]
"""The model, and the labels."""


class LabelSets(Numbering[LabelSet]):
    """Set 0 is the empty set of no model."""

    def __init__(self) -> None:
        super().__init__(("", frozenset()))
        self._matched: dict[tuple[Requirement, ...], NDArray[np.bool_]] = {}

    def selected(self, selector: tuple[Requirement, ...]) -> NDArray[np.bool_]:
        """[numbers]: which sets match the whole selector."""
        matched = self._matched.pop(selector, None)
        if matched is None:
            matched = np.array([_matches(selector, each) for each in self._values], np.bool_)
        self._matched[selector] = matched
        if len(self._matched) > MAX_SELECTORS:
            del self._matched[next(iter(self._matched))]
        return matched[: len(self)]

    def _add(self, number: int) -> None:
        for selector, matched in self._matched.items():
            if number >= len(matched):
                more = np.zeros(len(matched) + 64, np.bool_)
                matched = self._matched[selector] = np.concatenate([matched, more])
            matched[number] = _matches(selector, self._values[number])


def _matches(selector: Sequence[Requirement], label_set: LabelSet) -> bool:
    model, labels = label_set[0], dict(label_set[1])
    return all(line.matches(labels, model) for line in selector)
