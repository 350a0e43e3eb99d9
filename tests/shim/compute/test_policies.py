"""What containers get with and without lanes and by their policies, in virtual time: the real
arbiter and limiter around a modelled GPU. `python -m bench core` has many more pairs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.model import Container, Model, Outcome, Program, alone
from bench.virtual import PROGRAMS
from gpuslice.contract.grant_file import Policy
from tests.shim.compute.test_lanes import AWAITED, DECODE, GEMM

BURSTS, EACH_5_MS = PROGRAMS["bursts, pauses of 20 ms"], PROGRAMS["each 5 ms awaited"]
PAUSES = PROGRAMS["decode, pauses of 20 ms"]
SECONDS = 4
SWITCH_US = 150


def beside(
    program: Program,
    other: Program,
    percent: int = 30,
    of_a: Policy = Policy.FAIR,
    of_b: Policy = Policy.FAIR,
) -> Outcome:
    containers = {
        "a": Container(percent, (program,), of_a),
        "b": Container(100 - percent, (other,), of_b),
    }
    return Model(containers).measure(SECONDS, 2)


def progress(outcome: Outcome, key: str, program: Program) -> float:
    """Return the part of its rate alone that the program reaches."""
    return outcome.rate[key] / alone(program).rate["a"]


def slowness(outcome: Outcome, key: str, program: Program) -> float:
    """Return the median step as a multiple of that alone."""
    return outcome.p50_us[key] / alone(program).p50_us["a"]


def test_programs_that_leave_the_gpu_idle_do_not_wait_for_each_other() -> None:
    outcome = beside(DECODE, DECODE)
    assert all(progress(outcome, key, DECODE) >= 0.97 for key in "ab")


@pytest.mark.parametrize("percent", [10, 30, 90])
def test_an_intermittent_program_and_one_that_fills_the_gpu(percent: int) -> None:
    outcome = beside(DECODE, GEMM, percent)
    got = progress(outcome, "a", DECODE), progress(outcome, "b", GEMM)
    assert got[0] >= percent / 100 - 0.02 and got[1] >= 0.98 - percent / 100
    assert sum(got) >= 1.15
    assert slowness(outcome, "a", DECODE) <= 1.5 * max(1, 31 / percent)


@pytest.mark.parametrize("percent", [10, 30, 70])
def test_a_program_that_waits_for_each_launch_gets_turns(percent: int) -> None:
    """The GPU's own time slices would let it do a twentieth of what it does alone."""
    outcome = beside(AWAITED, GEMM, percent)
    assert progress(outcome, "a", AWAITED) >= percent / 100 - 0.02
    assert progress(outcome, "b", GEMM) >= 0.98 - percent / 100
    assert slowness(outcome, "a", AWAITED) <= 2 * max(1, 50 / percent)


def test_turns_are_exclusive_windows() -> None:
    outcome = beside(DECODE, GEMM, 30, Policy.TURNS)
    assert progress(outcome, "a", DECODE) == pytest.approx(0.3, abs=0.03)
    assert outcome.share["b"] == pytest.approx(70, abs=3)
    assert outcome.p99_us["a"] >= 60_000


@pytest.mark.parametrize("program", [DECODE, AWAITED, GEMM], ids=["decode", "awaited", "gemm"])
@pytest.mark.parametrize("percent", [30, 70])
def test_a_fair_share_beside_turns(program: Program, percent: int) -> None:
    outcome = beside(program, DECODE, percent, of_b=Policy.TURNS)
    assert progress(outcome, "a", program) >= percent / 100 - 0.02
    assert progress(outcome, "b", DECODE) >= 0.98 - percent / 100


@pytest.mark.parametrize(
    "program", [DECODE, AWAITED, EACH_5_MS, GEMM], ids=["decode", "awaited", "5 ms", "gemm"]
)
def test_a_capped_container_gets_its_share_of_gpu_time(program: Program) -> None:
    outcome = Model({"a": Container(20, (program,), Policy.CAPPED)}).measure(SECONDS, 2)
    assert outcome.share["a"] == pytest.approx(20, abs=1.5)


def test_capped_containers_beside_each_other() -> None:
    containers = {
        "a": Container(20, (DECODE,), Policy.CAPPED),
        "b": Container(50, (GEMM,), Policy.CAPPED),
    }
    outcome = Model(containers, switch_us=SWITCH_US).measure(SECONDS, 2)
    assert outcome.error({"a": 20, "b": 50}) <= 1.5


@pytest.mark.parametrize(
    ("program", "kept", "slower", "of_rest"),
    [
        (BURSTS, 0.95, 1.2, 0.8),
        (PAUSES, 0.95, 1.2, 0.8),
        (DECODE, 0.9, 1.3, 0.5),
        (AWAITED, 0.9, 1.3, 0),
        (GEMM, 0.99, 1.05, 0),
    ],
    ids=["bursts", "decode with pauses", "decode", "awaited", "gemm"],
)
def test_background_work_uses_what_others_leave(
    program: Program, kept: float, slower: float, of_rest: float
) -> None:
    behind = Container(50, (GEMM,), Policy.BACKGROUND)
    model = Model({"a": Container(50, (program,)), "b": behind}, switch_us=SWITCH_US)
    outcome = model.measure(4 * SECONDS, 2)
    assert progress(outcome, "a", program) >= kept
    assert slowness(outcome, "a", program) <= slower
    assert outcome.share["b"] >= of_rest * (100 - outcome.share["a"])


def test_background_work_beside_two_takes_no_share_and_gets_what_they_leave() -> None:
    behind = Container(0, (GEMM,), Policy.BACKGROUND)
    capped = {key: Container(p, (GEMM,), Policy.CAPPED) for key, p in (("a", 70), ("b", 30))}
    outcome = Model({**capped, "c": behind}, switch_us=SWITCH_US).measure(SECONDS, 2)
    assert outcome.error({"a": 70, "b": 30}) <= 1.5
    laned = {key: Container(50, (DECODE,)) for key in "ab"}
    # The utilization of both is measured again and again, though nothing else needs it.
    outcome = Model({**laned, "c": behind}, switch_us=SWITCH_US).measure(SECONDS, 8)
    assert all(progress(outcome, key, DECODE) >= 0.9 for key in "ab")
    assert outcome.windows["c"][-1] >= 5


def test_background_work_alone_has_the_gpu() -> None:
    outcome = Model({"a": Container(30, (GEMM,), Policy.BACKGROUND)}).measure(2, 1)
    assert outcome.share["a"] >= 95


def of_pair(a: Program, b: Program, percent: int) -> Model:
    """A GPU that takes time to change between contexts, with `a` at this share and `b` at the
    rest."""
    shares = {"a": Container(percent, (a,)), "b": Container(100 - percent, (b,))}
    return Model(shares, switch_us=SWITCH_US)


def test_a_program_that_fills_the_gpu_keeps_its_share_though_lanes_cost_time() -> None:
    outcome = of_pair(DECODE, GEMM, 30).measure(5, 1.5)
    assert progress(outcome, "b", GEMM) >= 0.66
    assert progress(outcome, "a", DECODE) >= 0.5


def test_programs_whose_lanes_delay_each_other_take_turns() -> None:
    outcome = of_pair(AWAITED, AWAITED, 30).measure(5, 1.5)
    assert progress(outcome, "a", AWAITED) >= 0.27
    assert progress(outcome, "b", AWAITED) >= 0.66


def test_a_program_that_begins_to_use_less_soon_needs_less() -> None:
    """Its utilization was measured while it filled the GPU. It must not seem to lag for long."""
    model = of_pair(DECODE, replace(DECODE, first_us=1_000, first_launches=800), 30)
    outcome = model.measure(2, 3)
    assert progress(outcome, "a", DECODE) >= 0.9
    assert progress(outcome, "b", DECODE) >= 0.9


def test_a_lagging_programs_turn_is_its_own() -> None:
    """Lanes that are ahead of their shares would delay it in its turn, which then takes longer."""
    programs = {"a": GEMM, "b": DECODE, "c": AWAITED, "d": PROGRAMS["20 us, gaps of 60"]}
    containers = {key: Container(25, (program,)) for key, program in programs.items()}
    outcome = Model(containers, switch_us=SWITCH_US).measure(SECONDS, 2)
    got = [progress(outcome, key, program) for key, program in programs.items()]
    assert min(got) >= 0.23 and sum(got) >= 1.45


@pytest.mark.parametrize("percent", [30, 50])
def test_launches_that_outlast_a_measurement_are_not_measured_again_and_again(percent: int) -> None:
    """A measurement takes the time of others and makes no debt."""
    long = PROGRAMS["50 ms"]
    outcome = of_pair(PROGRAMS["500 us"], long, percent).measure(8, 1.5)
    assert outcome.error({"a": percent, "b": 100 - percent}) <= 2
    outcome = of_pair(long, long, percent).measure(8, 1.5)
    assert outcome.error({"a": percent, "b": 100 - percent}) <= 2.5
