"""Lanes and the library's count of GPU time, in virtual time: the real limiter around a modelled
GPU, with leases that the test writes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bench.model import Container, Model, Outcome, Program, alone
from bench.virtual import PROGRAMS
from gpuslice.contract.grant_file import Policy
from gpuslice.contract.lease_file import UNLIMITED_NS, Lease
from shim.arbiter.lanes import IN_FLIGHT_US, Lanes
from shim.arbiter.member import Member, Share

MS = 1_000_000
DECODE, GEMM = PROGRAMS["decode"], PROGRAMS["1.4 ms"]
AWAITED = PROGRAMS["each 45 us awaited"]
MANY_KINDS = Program(range(3, 153), gap_us=60, launches=300, step_gap_us=600)
SPARSE = Program((5,), gap_us=198, launches=50)


class Leased(Model):
    """A GPU whose leases are written by hand, and renewed."""

    def measure_with(self, leases: Mapping[str, Lease], seconds: int = 3) -> Outcome:
        self._leases = leases
        return self.measure(seconds, 1)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.1)):
            renewed = {
                key: lease._replace(written_ns=self.now_ns, exclusive=False)
                for key, lease in self._leases.items()
            }
            self._write(renewed)
            super().run(0.1)


def leased(**programs: Program) -> Leased:
    return Leased({key: Container(50, (each,)) for key, each in programs.items()}, arbiter=False)


def test_the_time_of_measuring_is_given_back() -> None:
    lagged_ns = []
    for measures in (True, False):
        lanes, lane, other = Lanes(), Member("a", Share(1)), Member("b", Share(99))
        lane.has_lane, lane.part_ppm, other.part_ppm = True, 5_000, 995_000
        lanes.count(0, [lane, other], 40 * MS if measures else 0, lane, True)
        for step in range(100):
            lanes.count(step * 10 * MS, [lane, other], 10 * MS, other, False)
        lagged_ns.append(lanes.group_lag_ns)
    assert 12 * MS < lagged_ns[0] - lagged_ns[1] < 20 * MS


ALWAYS = Lease(0, 1, 2**62, in_flight_us=3_000)
OPEN = Lease(0, lane_base_ns=UNLIMITED_NS, lane_from_ns=1, in_flight_us=IN_FLIGHT_US)


@pytest.mark.parametrize(
    "program",
    [DECODE, MANY_KINDS, SPARSE, AWAITED, GEMM],
    ids=["decode", "many kinds", "sparse", "awaited", "gemm"],
)
@pytest.mark.parametrize("percent", [30, 99])
def test_gpu_time_is_counted_without_the_gaps(program: Program, percent: int) -> None:
    outcome = Model({"a": Container(percent, (program,), Policy.CAPPED)}).measure(3, 4)
    assert outcome.counted["a"] == pytest.approx(outcome.share["a"], rel=0.02)


def test_an_open_lane_beside_a_full_gpu_runs_as_without_limits() -> None:
    outcome = leased(a=DECODE, b=GEMM).measure_with({"a": OPEN, "b": ALWAYS})
    assert outcome.rate["a"] >= 0.88 * alone(DECODE).rate["a"]
    assert outcome.rate["b"] >= 0.68 * alone(GEMM).rate["a"]


@pytest.mark.parametrize("percent", [5, 20])
def test_a_limited_lane_gets_the_gpu_time_that_it_allows(percent: int) -> None:
    started = leased(a=DECODE, b=GEMM)
    base_ns = round(0.01 * MS)
    lane = Lease(0, 0, 0, base_ns, started.now_ns, percent * 10_000, in_flight_us=IN_FLIGHT_US)
    outcome = started.measure_with({"a": lane, "b": ALWAYS})
    assert outcome.share["a"] == pytest.approx(percent, rel=0.05)


def test_work_in_flight_is_limited_by_the_time_until_its_end() -> None:
    """Beside two full containers, work takes three times as long. A lane has 3 ms in flight, so it
    has launched about a millisecond of work ahead."""
    small = Program((20,))
    started = leased(a=small, b=GEMM, c=GEMM)
    started.measure_with({"a": OPEN, "b": ALWAYS, "c": ALWAYS}, 1)
    ahead_ns = []
    for _ in range(100):
        Model.run(started, 0.0031)
        done_ns, _, launches, _ = started._read(started.programs["a"][0])
        ahead_ns.append(launches * 20_000 - done_ns)
    assert sum(ahead_ns) / 100 <= 1.3 * MS
