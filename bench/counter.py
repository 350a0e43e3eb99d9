"""The cost that the library adds to an allocation: one reserve and one refund, uncontended.

Reads the output of bench-core (bench/c/core_bench.c), which measures all rows in one process.
"""

from __future__ import annotations

from bench import Result
from bench.native import built, granted, output

ROWS = {
    "nothing": "an empty function",
    "plain_atomic": "atomic add and subtract",
    "robust_mutex": "two robust mutex sections",
    "reserve_refund": "vgpu_reserve and vgpu_refund",
}
AT_MOST = {"reserve_refund_per_robust_mutex": 4.0}
"""A ratio, not a time: the reference is the cost of the kernel's robust mutex, its own mechanism
for an exiting lock holder."""


def run(quick: bool) -> Result:
    (program,) = built("bench-core")
    with granted() as environment:
        lines = output([program, "300000" if quick else "5000000"], environment).splitlines()
    measured = {line.split()[0]: float(line.split()[1]) for line in lines}
    figures = {f"{name}_ns": ns for name, ns in measured.items()}
    for rival in ("plain_atomic", "robust_mutex"):
        figures[f"reserve_refund_per_{rival}"] = round(
            measured["reserve_refund"] / measured[rival], 2
        )
    rows = [
        (ROWS[name], f"{ns:.1f}", f"{ns / measured['plain_atomic']:.1f}")
        for name, ns in measured.items()
    ]
    return Result(figures, AT_MOST, ("one pair", "ns", "x atomic"), rows)
