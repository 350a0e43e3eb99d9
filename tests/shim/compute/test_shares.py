"""Shares of the GPU's time, in virtual time: the real arbiter and limiter around a modelled GPU.

A container's share is the time that the GPU works for it, in percent of the time that it would work
for the same programs alone and without a limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import mean
from typing import Any

import pytest

from bench.disturbed import Watched
from bench.model import Container, Model, Outcome, Program, alone
from gpuslice.contract.grant_file import Policy

KERNELS_US = (5, 50, 500, 5_000, 50_000)
CAPS = range(10, 100, 10)
SMALL, BIG, MIXED = Program((20,)), Program((50_000,)), Program((5, 5_000, 50, 20))
FOUR = (Program((100,)),) * 4
SHARES = ((10, 90), (30, 70), (50, 50))
each_shares = pytest.mark.parametrize("shares", SHARES, ids=str)


def measured(containers: Mapping[str, Container], **options: Any) -> Outcome:
    return Model(containers, **options).measure()


def forced(percent: int, *programs: Program) -> Mapping[str, Container]:
    return {"a": Container(percent, programs, Policy.CAPPED)}


def pair(a: int, b: int, one: Program = SMALL, other: Program = SMALL) -> Mapping[str, Container]:
    return {"a": Container(a, (one,)), "b": Container(b, (other,))}


@pytest.mark.parametrize(
    ("processes", "kernel_us"), [*product([1], KERNELS_US), *product([2, 8], [50, 500, 5_000])]
)
def test_a_forced_share_holds_for_every_cap(processes: int, kernel_us: int) -> None:
    """A container's processes together get the container's share."""
    outcomes = {cap: measured(forced(cap, *[Program((kernel_us,))] * processes)) for cap in CAPS}
    errors = [abs(outcome.share["a"] - cap) for cap, outcome in outcomes.items()]
    # Each of eight processes has 3 ms in flight at the end of a window, and predicts only its own.
    many = processes == 8 and kernel_us <= 500
    assert mean(errors) <= (9 if many else 1) and (processes > 1 or max(errors) <= 1.5)
    of_seconds = sorted(
        abs(share - cap) for cap, outcome in outcomes.items() for share in outcome.windows["a"]
    )
    assert many or of_seconds[int(len(of_seconds) * 0.95)] <= 4


@pytest.mark.parametrize("kernel_us", KERNELS_US)
def test_a_program_that_waits_for_each_kernel(kernel_us: int) -> None:
    """Its cap is of GPU time, of which it perhaps uses less alone."""
    program = Program((kernel_us,), waits_each=True)
    whole = alone(program).share["a"]
    errors = [
        abs(measured(forced(cap, program)).share["a"] - min(cap, whole)) for cap in (10, 30, 70)
    ]
    assert mean(errors) <= 1.5


PAIRS = {
    "small": ((SMALL,), (SMALL,)),
    "small-big": ((SMALL,), (BIG,)),
    "big-small": ((BIG,), (SMALL,)),
    "big": ((BIG,), (BIG,)),
    "mixed": ((MIXED,), (SMALL,)),
    "four": (FOUR, (SMALL,)),
    "four-big": (FOUR, (BIG,)),
}
THREE = {
    "three": ((SMALL,), (SMALL,), (SMALL,)),
    "big-small-mixed": ((BIG,), (SMALL,), (MIXED,)),
    "small-mixed-big": ((SMALL,), (MIXED,), (BIG,)),
}


@pytest.mark.parametrize(
    ("shares", "programs"), [*product(SHARES, PAIRS), *product([(20, 30, 50)], THREE)], ids=str
)
def test_containers_get_what_they_requested(shares: Sequence[int], programs: str) -> None:
    wanted = dict(zip("abc", shares, strict=False))
    each = zip(wanted.items(), (PAIRS | THREE)[programs], strict=True)
    containers = {key: Container(percent, started) for (key, percent), started in each}
    # Which of them saturate the GPU is known after some seconds.
    outcome = Model(containers).measure(settle_s=4)
    # Each of four processes predicts only its own work, so their utilization is less exact.
    assert outcome.error(wanted) <= (4 if programs == "four-big" else 2)
    assert outcome.idle <= 2


BURSTS = {
    "long kernel": (Program((20_000,), launches=1, step_gap_us=20_000), SMALL),
    "kernel": (Program((8_000,), launches=1, step_gap_us=4_000), SMALL),
    "kernels": (Program((846,), launches=8, step_gap_us=34_000), Program((23, 36_673))),
}


@pytest.mark.parametrize(("share", "programs"), [*product([30, 50, 70], BURSTS)], ids=str)
def test_a_program_that_pauses_beside_one_that_fills_the_gpu(share: int, programs: str) -> None:
    outcome = Model(pair(share, 100 - share, *BURSTS[programs])).measure(5, 4)
    alone_a, alone_b = (alone(program, 4).share["a"] for program in BURSTS[programs])
    assert 100 * outcome.share["a"] / alone_a >= share - 2
    assert 100 * outcome.share["b"] / alone_b >= 100 - share - 2


@pytest.mark.parametrize(
    ("percent", "policy"), [(99, Policy.FAIR), (99, Policy.CAPPED), (30, Policy.CAPPED)]
)
@pytest.mark.parametrize("kernel_us", [20_000, 60_000])
def test_a_long_kernel_on_another_stream_of_the_program_delays_no_launch(
    kernel_us: int, percent: int, policy: Policy
) -> None:
    """They go on while the long kernel outlasts its window."""
    steps = Program((12,), gap_us=35, launches=300, step_gap_us=600, beside=((kernel_us,),))
    outcome = measured({"a": Container(percent, (steps,), policy)})
    alone_rate = alone(steps).rate["a"] * (1 if percent > 90 else percent / 100)
    assert outcome.rate["a"] >= 0.9 * alone_rate


@pytest.mark.parametrize("program", [BIG, MIXED], ids=["big", "mixed"])
def test_hand_over_to_waiting_programs_takes_little(program: Program) -> None:
    """Each window begins just before the previous window's work is done, so the GPU is busy."""
    assert measured(pair(30, 70, program, program), wake_us=200).idle <= (
        2 if program is MIXED else 0.3
    )


def test_a_forced_share_leaves_the_rest_idle() -> None:
    outcome = measured(
        {"a": Container(20, policy=Policy.CAPPED), "b": Container(30, policy=Policy.CAPPED)}
    )
    assert outcome.error({"a": 20, "b": 30}) <= 1
    assert 48 <= outcome.idle <= 52


@pytest.mark.parametrize("kernel_us", KERNELS_US)
def test_a_container_that_begins_gets_its_share_at_once(kernel_us: int) -> None:
    """The first container was alone, so its program has as many pending launches as possible."""
    model = Model({"a": Container(20, (Program((kernel_us,)),))})
    model.run(2)
    assert model.share_of("a", 1) >= 98
    model.enter({"b": Container(80)})
    model.run(0.3)
    assert model.share_of("b", 3) >= 78


@pytest.mark.parametrize("at_s", [1.013, 1.045, 1.081])
def test_the_window_of_a_killed_container_passes_on_within_one_cycle(at_s: float) -> None:
    """The killed container's work ends at once. The other container gets the whole GPU as soon as
    the arbiter's next scan finds the killed container gone."""
    model = Model(pair(50, 50))
    model.run(at_s)
    model.kill("b")
    assert model.share_of("a", 0.2) >= 50
    assert model.share_of("a", 1) >= 98


def test_a_changed_share_takes_effect_within_one_cycle() -> None:
    model = Model(pair(10, 90))
    model.run(2)
    model.change({"a": 90, "b": 10})
    model.run(0.1)
    assert model.share_of("a", 1) >= 87


@each_shares
def test_without_an_arbiter_each_has_its_own_part_of_the_cycle(shares: tuple[int, int]) -> None:
    wanted = dict(zip("ab", shares, strict=True))
    outcome = measured(pair(*shares, SMALL, Program((500,))), arbiter=False)
    assert outcome.error(wanted) <= 1
    # A kernel that outlasts its part of the cycle runs beside the next container's. Both lose time.
    outcome = measured(pair(*shares, BIG, SMALL), arbiter=False)
    assert outcome.error(wanted) <= 15
    assert all(outcome.share[key] <= 2 * wanted[key] for key in wanted)


@pytest.mark.parametrize("silent_s", [0.5, 1, 3.9])
@pytest.mark.parametrize("shares", [(10, 90), (30, 70)], ids=str)
def test_an_arbiter_that_stops_and_continues_costs_little(
    shares: tuple[int, int], silent_s: float
) -> None:
    """The parent kills an arbiter that has stopped for four seconds. Until then, each container
    uses its own part of the cycle. This work does not become debt."""
    wanted = dict(zip("ab", shares, strict=True))
    for programs in ((SMALL, SMALL), (BIG, SMALL), (SMALL, BIG)):
        for phase_s in (0, 0.04, 0.08):
            model = Watched(pair(*shares, *programs))
            model.begin(1 + phase_s)
            for seconds, runs in ((9.8, True), (silent_s, False), (9.8, True)):
                model.arbiter = runs
                model.run(seconds)
            for parts in model.parts(10):
                assert all(abs(100 * parts[key] - wanted[key]) <= 10 for key in wanted)
                assert all(0.5 <= 100 * parts[key] / wanted[key] <= 2 for key in wanted)


def test_an_arbiter_that_stops_leaves_no_debt_of_leased_time() -> None:
    """The arbiter starts late and stops again. Work in windows is not counted against the own parts
    that containers use after the stop."""
    model = Model(pair(30, 70), arbiter=False)
    for runs, seconds in ((False, 1), (True, 3), (False, 0.6)):
        model.arbiter = runs
        model.run(seconds)
    before_ns = model.done_ns("b")
    assert abs(model.share_of("a", 3) - 30) <= 1
    assert abs((model.done_ns("b") - before_ns) / 3e7 - 70) <= 1


@pytest.mark.parametrize("late_us", [0, 2_000, 10_000])
def test_a_late_arbiter_costs_at_most_what_it_is_late(late_us: int) -> None:
    outcome = measured(pair(30, 70), arbiter_late_us=late_us)
    assert outcome.error({"a": 30, "b": 70}) <= 1.5 + late_us / 1000


@pytest.mark.parametrize("slice_us", [500, 2_000, 6_000])
@pytest.mark.parametrize("wake_us", [20, 500])
def test_the_gpus_and_the_kernels_times_do_not_matter(slice_us: int, wake_us: int) -> None:
    outcome = measured(pair(30, 70, SMALL, BIG), slice_us=slice_us, wake_us=wake_us)
    assert outcome.error({"a": 30, "b": 70}) <= 2
