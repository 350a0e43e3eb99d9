"""The most progress that containers of a GPU can make together while all keep their floors."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.virtual import reference


@pytest.mark.parametrize(
    ("hardware", "floors", "total"),
    [
        ((1.0, 1.0), (0.28, 0.68), 2.0),
        ((0.5, 0.48), (0.28, 0.68), 1.0),
        ((0.5, 0.48), (0.48, 0.48), 0.98),
        ((0.05, 0.98), (0.28, 0.68), 1 + 0.757 * 0.03),
        ((0.9, 0.7), (0.08, 0.88), 1.24),
        ((0.4, 0.4, 0.7), (0.18, 0.28, 0.48), 1.5),
        ((0.1, 0.9, 0.9), (0.3, 0.3, 0.3), 1 + 0.777 * 0.9),
    ],
    ids=[
        "all floors are kept, nothing is lost",
        "nothing to win beyond exclusive time",
        "all floors are kept, the hardware loses time",
        "the first is starved by the hardware",
        "the second lacks a part",
        "three, all floors are kept",
        "three, the first is starved",
    ],
)
def test_reference_is_the_best_mixture_that_keeps_the_floors(
    hardware: Sequence[float], floors: Sequence[float], total: float
) -> None:
    assert reference(hardware, floors) == pytest.approx(total, abs=1e-6)
