"""Numbers the distinct pairs of model and labels of GPUs, and finds those that a selector matches.

The matches of recent selectors are cached, because selectors are evaluated often and every GPU may
have different labels. Each new pair is added to the cached matches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduler.core.numbering import Numbering
from scheduler.core.request import Requirement

MAX_SELECTORS: Final = 64
"""The number of cached selectors. The least recently used one is dropped for a new one."""

LabelSet = tuple[str, frozenset[tuple[str, str]]]
"""The model and the labels of a GPU."""


class LabelSets(Numbering[LabelSet]):
    """The label sets of the fleet's GPUs. Number 0 has no model and no labels."""

    def __init__(self) -> None:
        super().__init__(("", frozenset()))
        self._matched: dict[tuple[Requirement, ...], NDArray[np.bool_]] = {}

    def selected(self, selector: tuple[Requirement, ...]) -> NDArray[np.bool_]:
        """Return which sets match the whole selector, by the set's number."""
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
