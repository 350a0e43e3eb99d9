"""Shares around faults of the arbiter, of a container and of a clock, in virtual time."""

from __future__ import annotations

import pytest

from bench.disturbed import CASES, judge
from bench.model import Container, Model, alone
from bench.virtual import PROGRAMS, Case
from gpuslice.contract.region_file import Compute
from shim.arbiter.clock import Clock
from shim.arbiter.member import Share, plausible

NOW_NS, S = 10**15, 10**9


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.group}, {' | '.join(case.names)}")
def test_a_fault_costs_the_others_little(case: Case) -> None:
    figures = judge(case, 10).figures
    assert figures["fault_below_share_most_points"] <= 10
    assert figures["fault_most_of_share"] <= 2


@pytest.mark.parametrize(
    ("ahead_s", "learned_s"),
    [
        ((-100, -100), -100),
        ((0.0, -0.05, -0.05), -0.05),
        ((2, 2), 2),
        ((100, 100, 0), 0),
        ((100, -100, 70), 0),
        ((-0.02, -0.02), 0),
        ((8e9, 8e9), 0),
    ],
)
def test_two_launches_show_a_clock(ahead_s: tuple[float, ...], learned_s: float) -> None:
    """One may be of an overwritten region. The arbiter looks every 10 ms."""
    clock = Clock(looked_ns=NOW_NS - S // 100)
    for number, each in enumerate(ahead_s):
        at_ns = NOW_NS + number * S // 100
        clock.to_host(at_ns, Compute(launched_ns=at_ns + int(each * S)))
    assert clock.ahead_ns == int(learned_s * S)


def test_an_arbiter_that_was_stopped_learns_no_clock() -> None:
    clock = Clock(looked_ns=NOW_NS)
    for seconds in (4, 8):
        clock.to_host(NOW_NS + seconds * S, Compute(launched_ns=NOW_NS + (seconds - 3) * S))
    assert clock.ahead_ns == 0


def test_a_lane_of_any_gpu_time_fits_a_lease() -> None:
    assert plausible(Compute(spent_ns=2**64 - 1), NOW_NS).spent_ns + 10 * S < 2**64


@pytest.mark.parametrize("percent", [30, 70])
@pytest.mark.parametrize("old", ["decode", "1.4 ms"])
def test_a_container_of_an_older_library_beside_a_lane(old: str, percent: int) -> None:
    """It only takes turns. Its utilization must be known: what it leaves is no cost of lanes."""
    programs = {"lane": PROGRAMS["decode"], "old": PROGRAMS[old]}
    shares = {"lane": 100 - percent, "old": percent}
    model = Model({key: Container(shares[key], (each,)) for key, each in programs.items()})
    model.shares["old"] = Share(percent, lanes=False)
    model.turns.set_shares(model.shares)
    rate = model.measure(5, 3).rate
    for key, program in programs.items():
        assert 100 * rate[key] / alone(program).rate["a"] >= shares[key] - 2
