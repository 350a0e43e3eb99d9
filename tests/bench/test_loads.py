"""Figures that the bench of shares computes from the output of cuda-load."""

from __future__ import annotations

import pytest

from bench.loads import Load, _together

GRAPH = Load(30, 200, "graph")
_STEPS = "launch to launch: best {0}00.0 ns, p50 {0}.0 us, p99 {0}0.0 us, longest 99.0 us"


@pytest.mark.parametrize(
    ("load", "p50_us", "p99_us"),
    [
        (Load(30, 200), 0, 0),  # 150 launches in a window
        (Load(30, 500), 0, 70_000),  # 60
        (GRAPH, 0, 70_000),  # 7.5, each of 20 kernels
        (Load(30, 200, processes=8), 0, 70_000),  # 18.75 of each process
        (Load(90, 50_000), 10_000, 10_000),  # 1.8
        (Load(10, 50_000), 450_000, 450_000),  # one in five windows
    ],
)
def test_the_ideal_wait_is_once_per_window(load: Load, p50_us: float, p99_us: float) -> None:
    found = [load.ideal_added_us(quantile, 100) for quantile in (0.5, 0.99)]
    assert found == pytest.approx([p50_us, p99_us])


def test_work_of_several_processes_is_added_up() -> None:
    """It is added up by the seconds at whose ends the lines are, which are late."""
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
