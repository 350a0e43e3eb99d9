"""Measures the shares of a GPU's time, and what the library adds to a launch.

Most shares are measured in virtual time (cases.py), some on the simulated GPU in real time
(simulated.py). For the latter and for the costs the machine must be idle.
"""

from __future__ import annotations

from typing import Final

from bench import Result, cases, launch_cost, simulated, virtual
from bench.loads import host
from bench.native import built

_HEADER: Final = ("containers", "requested, %", "got, %", "")
_MODEL: Final = "vgpu-compute-model"
_AT_MOST: Final = {
    **launch_cost.AT_MOST,
    **virtual.AT_MOST,
    "turns_gpu_bound_error_most_points": virtual.AT_MOST["gpu_bound_error_most_points"],
    "turns_kept_rows": 0.0,
    **simulated.AT_MOST,
}


def run(quick: bool) -> Result:
    load, calls, launches, _ = built("cuda-load", "bench-calls", "bench-launches", _MODEL)
    at_least = {**virtual.AT_LEAST, **simulated.AT_LEAST}
    result = Result(_HEADER, at_most=dict(_AT_MOST), at_least=at_least)
    launch_cost.with_null_driver(result, calls, quick)
    with host(load) as simulation:
        launch_cost.back_to_back(result, simulation, quick)
        launch_cost.of_15_kinds(result, simulation, launches, quick)
        simulated.measure(result, simulation, quick)
    cases.shares(result, 3 if quick else 10, quick)
    cases.turns_control(result, 3 if quick else 10, quick)
    return result


def run_other_slices() -> Result:
    """Judge the pairs with other time slices of the GPU."""
    built(_MODEL)
    goal = "below_floor_most_points"
    result = Result(_HEADER, at_most={goal: virtual.AT_MOST[goal]})
    cases.other_slices(result, 10)
    return result
