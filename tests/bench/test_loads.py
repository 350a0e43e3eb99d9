"""The computation of the shares benchmark's figures from the output of cuda-load."""

from __future__ import annotations

import pytest

from bench.loads import _together

_STEPS = "launch to launch: best {0}00.0 ns, p50 {0}.0 us, p99 {0}0.0 us, longest 99.0 us"


def test_work_of_several_processes_is_added_up() -> None:
    """cuda-load prints a line late. Its work counts in the second that the line reports."""
    outputs = []
    for number, late_s in ((1, 0.02), (2, 0.4)):
        lines = [
            f"after {second + late_s:.2f} s: 10 launches, {10 * number + (second == 4):.2f} %"
            " of the time"
            for second in range(1, 7)
        ]
        outputs.append("\n".join([*lines, _STEPS.format(number)]))
    got = _together(outputs, 3)
    assert got.seconds == [30, 32, 30]
    assert got.share == pytest.approx(30 + 2 / 3)
    assert (got.best_us, got.p50_us, got.p99_us) == (0.1, 2, 20)
