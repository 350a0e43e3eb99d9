"""The arbiter's `Turns`: parts of a cycle, and invariants for any activity of containers."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.contract import lease_file
from gpuslice.contract.grant_file import Policy
from gpuslice.contract.lease_file import ALONE_US, CYCLE_NS, STALE_NS, WHOLE_PPM, Lease
from gpuslice.contract.region_file import Compute
from shim.arbiter.member import Share, parts_ppm
from shim.arbiter.turns import Turns

MS = 1_000_000
START = 10**12


@pytest.mark.parametrize(
    ("percents", "parts"),
    [
        ([30, 70], [300_000, 700_000]),
        ([100], [1_000_000]),
        ([0], [1_000_000]),
        ([30, 100, 0], [300_000, 350_000, 350_000]),
        ([60, 60], [500_000, 500_000]),
        ([50, 50, 0], [476_190, 476_190, 47_619]),
    ],
)
def test_the_parts_of_a_cycle(percents: list[int], parts: list[int]) -> None:
    shares = dict(zip("abc", map(Share, percents), strict=False))
    assert list(parts_ppm(shares).values()) == parts


@given(st.dictionaries(st.text(max_size=3), st.builds(Share, st.integers(0, 100)), max_size=12))
def test_parts_never_exceed_a_cycle(shares: dict[str, Share]) -> None:
    parts = parts_ppm(shares)
    assert parts.keys() == shares.keys()
    assert sum(parts.values()) <= WHOLE_PPM and all(part > 0 for part in parts.values())


U64 = st.integers(0, 2**64 - 1) | st.sampled_from([0, START, 2**64 - 1])


def turns_of(*shares: Share) -> Turns:
    """Return the `Turns` of containers a, b, c, ... with these shares."""
    turns = Turns()
    turns.set_shares(dict(zip("abcd", shares, strict=False)))
    return turns


class Player:
    """A container that acts at random: it launches work that ends later, does nothing, or writes
    arbitrary values into its region."""

    def __init__(self, draw: st.DataObject) -> None:
        self._draw = draw
        self.activity = Compute()

    def play(self, now_ns: int, lease: Lease) -> None:
        if self._draw.draw(st.integers(0, 3)) == 0:
            anything = st.builds(Compute, U64, U64, spent_ns=U64, waiting_since_ns=U64)
            self.activity = self._draw.draw(anything)
            return
        wants = self._draw.draw(st.booleans())
        busy_ns = self.activity.busy_until_ns
        if wants and lease.start_ns <= now_ns < lease.end_ns:
            busy_ns = max(busy_ns, now_ns) + self._draw.draw(st.integers(0, 300 * MS))
        launched_ns = now_ns if wants else self.activity.launched_ns
        self.activity = Compute(launched_ns, busy_ns)


SHARES = st.builds(Share, st.integers(0, 100), st.sampled_from(Policy), st.booleans())


@given(st.lists(SHARES, min_size=1, max_size=4), st.data())
def test_whatever_containers_do_at_most_one_has_a_contended_turn(
    shares: list[Share], data: st.DataObject
) -> None:
    turns = turns_of(*shares)
    leases = {key: Lease(0) for key in "abcd"[: len(shares)]}
    players = {key: Player(data) for key in leases}
    now_ns = START
    for _ in range(20):
        written, again_ns = turns.step(now_ns, {key: p.activity for key, p in players.items()})
        leases.update(written)
        windows = [
            lease
            for lease in leases.values()
            if lease.in_flight_us < ALONE_US and lease.end_ns > now_ns
        ]
        assert all(
            one.end_ns <= other.start_ns or other.end_ns <= one.start_ns
            for index, one in enumerate(windows)
            for other in windows[:index]
        )
        assert all(lease.end_ns - lease.start_ns <= 720 * MS for lease in leases.values())
        assert all(lease_file.update(0, 1, lease) for lease in written.values())
        assert now_ns < again_ns <= now_ns + 2 * CYCLE_NS
        now_ns = again_ns + data.draw(st.integers(0, 5 * MS))
        for key, player in players.items():
            player.play(now_ns, leases[key])


def test_every_lease_is_written_again_while_nothing_happens() -> None:
    """Each lease is renewed before it expires, but not more often, because there may be many.
    A container that begins to launch ends the rest."""
    turns = turns_of(Share(30), Share(70), Share(0, Policy.BACKGROUND))
    written: Counter[str] = Counter()
    last: dict[str, Lease] = {}
    now_ns, steps, looks = START, 0, 0
    while now_ns < START + 10 * CYCLE_NS:
        looks += 1
        again_ns = turns.glance(now_ns, lambda _: Compute())
        if not again_ns:
            leases, again_ns = turns.step(now_ns, {})
            assert all(now_ns + 100 * MS < leases[key].end_ns for key in leases.keys() & set("ab"))
            last |= leases
            written.update(leases.keys())
            steps += 1
        now_ns = again_ns
        for key, lease in last.items():
            assert now_ns + 100 * MS < lease.written_ns + STALE_NS
            assert now_ns + 150 * MS < lease.end_ns or key == "c"
    assert all(1 <= written[key] <= 2 for key in "abc") and steps <= 3 and looks <= 12
    assert turns.glance(now_ns, lambda key: Compute(now_ns if key == "b" else 0)) == 0
    turns.step(now_ns, {})
    assert turns.glance(now_ns + MS, lambda _: Compute()) > 0
    turns.set_shares({"a": Share(40), "b": Share(60)})
    assert turns.glance(now_ns + MS, lambda _: Compute()) == 0


def test_work_that_a_call_waits_for_beyond_its_prediction_is_in_flight() -> None:
    """`a` has 10 percent. A call waits 60 ms for `a`'s first launch, predicted to take 1 us. Each
    container's first turn is 40 ms long, to measure its utilization."""
    turns = turns_of(Share(10), Share(90))
    leases = {key: Lease(0) for key in "ab"}
    open_ns = dict.fromkeys("ab", 0)
    now_ns = START
    while now_ns < START + 600 * MS:
        waits = now_ns < START + 60 * MS
        done_ns = START if waits else START + 60 * MS
        waiting = Compute(START, done_ns, waiting_since_ns=START * waits)
        written, again_ns = turns.step(now_ns, {"a": waiting, "b": Compute(now_ns, now_ns)})
        leases |= written
        for key, lease in leases.items():
            part_ns = min(lease.end_ns, again_ns) - max(lease.start_ns, now_ns)
            open_ns[key] += max(0, part_ns)
        assert not waits or leases["b"].end_ns == 0 or leases["b"].start_ns > now_ns
        now_ns = again_ns
    assert open_ns["a"] <= 60 * MS and open_ns["b"] >= 480 * MS


def test_a_container_that_leaves_and_returns_has_no_old_turn() -> None:
    turns = turns_of(Share(50), Share(50))
    busy = Compute(START, START + 5 * MS)
    turns.step(START, {"a": busy, "b": busy})
    turns.set_shares({"b": Share(100)})
    leases, _ = turns.step(START + MS, {"b": Compute(START + MS)})
    assert leases["b"].end_ns > START + CYCLE_NS and leases["b"].in_flight_us == ALONE_US
    turns.set_shares({"a": Share(50), "b": Share(50)})
    leases, _ = turns.step(START + 2 * MS, {"a": busy, "b": busy})
    assert len({key for key, lease in leases.items() if lease.end_ns > START + 2 * MS}) == 1


@pytest.mark.parametrize(
    ("shares", "launches_checked"),
    [
        ([Share(100)], False),
        ([Share(30)], True),
        ([Share(100, Policy.CAPPED)], False),
        ([Share(30), Share(100)], True),
        ([Share(100), Share(0)], False),
        ([Share(100), Share(0, Policy.TURNS)], True),
        ([Share(100, Policy.BACKGROUND)], True),
    ],
)
def test_launches_are_checked_only_where_it_matters(
    shares: list[Share], launches_checked: bool
) -> None:
    assert turns_of(*shares).launches_checked is launches_checked
