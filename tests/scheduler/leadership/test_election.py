"""Election by the Lease and a clock: single cases, and random runs."""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass, field, replace

import pytest

from scheduler.leadership.election import POST_S, Candidate, Do, Election, Role, Timing
from scheduler.leadership.lease import Campaign, Record

TIMING = Timing()
HOLDER = Record("other", 4, "here", 8, "t0", raw={})


def standby(record: Record | None = HOLDER, at_s: float = 0.0, exited: str = "") -> Election:
    election = Election(Candidate("me", "here", frozenset((exited,) if exited else ())))
    election.observed(record, at_s)
    return election


def holding(at_s: float = 0.0) -> Election:
    election = standby(replace(HOLDER, holder=""), at_s)
    election.record_call(at_s)
    take(election, at_s)
    assert election.must_list(at_s)
    election.listed()
    return election


def take(election: Election, at_s: float) -> None:
    assert election.step(at_s) is Do.ACQUIRE
    election.wrote(Do.ACQUIRE, election.record_for(Do.ACQUIRE, f"t{at_s}"), at_s, at_s)


def renew(election: Election, at_s: float) -> None:
    record = election.record_for(Do.RENEW, f"t{at_s}")
    election.wrote(Do.RENEW, record, at_s, at_s)


def campaign(by: str = "heir", installation: str = "here", count: int = 0) -> Campaign:
    return Campaign(by, installation, count)


def test_the_timeouts_tolerate_clocks_of_different_rates() -> None:
    slowest = 0.95  # a thousand times the real difference between two hosts' clocks
    after_acquiring = (TIMING.lease_s + TIMING.wait_s) * slowest
    assert after_acquiring >= TIMING.window_s + 2 * POST_S
    assert TIMING.exited_wait_s > POST_S
    assert TIMING.window_s > 2 * 2.0 + TIMING.renew_s - 0.1  # two calls of the Lease may fail


def test_a_process_without_calls_does_not_take_the_lease() -> None:
    election = standby(replace(HOLDER, holder=""))
    assert election.step(100) is Do.READ
    election.record_call(100)
    assert election.step(100) is Do.ACQUIRE
    assert election.step(100 + TIMING.candidacy_s + 1) is Do.READ


def test_the_next_holder_waits_for_the_writes_of_an_expired_one() -> None:
    election = standby(at_s=10)
    over_s = 10 + TIMING.lease_s
    election.record_call(over_s)
    assert election.step(over_s - 0.1) is not Do.ACQUIRE
    take(election, over_s)
    assert election.role is Role.ACQUIRING and not election.may_write(over_s)
    assert not election.must_list(over_s + TIMING.wait_s - 0.1)
    assert election.must_list(over_s + TIMING.wait_s)
    assert not election.may_write(over_s + TIMING.wait_s)
    renew(election, over_s + TIMING.wait_s)
    election.listed()
    assert election.may_write(over_s + TIMING.wait_s)


def test_a_relist_after_the_lease_is_lost_makes_no_holder() -> None:
    election = standby()
    election.listed()
    assert election.role is Role.STANDBY


def test_a_lease_expired_long_ago_needs_no_wait() -> None:
    election = standby(at_s=0)
    election.record_call(500)
    take(election, 500)
    assert election.must_list(500)


def test_a_longer_lease_of_another_release_is_respected() -> None:
    election = standby(replace(HOLDER, duration_s=60))
    election.record_call(59)
    assert election.step(59) is not Do.ACQUIRE
    assert election.step(60) is Do.ACQUIRE


def test_a_campaign_update_does_not_renew_the_lease() -> None:
    election = standby(at_s=0)
    for at_s in range(1, 9):
        election.record_call(at_s)
        election.observed(replace(HOLDER, campaign=campaign(count=at_s)), at_s)
    assert election.step(8) is Do.ACQUIRE


def test_the_lease_of_an_exited_process_is_taken_at_once() -> None:
    election = standby(exited="other")
    election.record_call(1)
    take(election, 1)
    assert not election.must_list(1 + POST_S)
    assert election.must_list(1 + TIMING.exited_wait_s)


def test_an_exited_holder_that_still_waited_is_waited_for() -> None:
    """An earlier holder may still run."""
    first = standby()
    first.record_call(TIMING.lease_s)
    take(first, TIMING.lease_s)
    assert first.record is not None and first.record.fencing_pending
    renew(first, TIMING.lease_s + 1)
    assert first.record.fencing_pending
    second = standby(replace(first.record, holder="other"), 10, exited="other")
    second.record_call(10)
    assert second.step(10) is not Do.ACQUIRE
    second.record_call(10 + TIMING.lease_s)
    take(second, 10 + TIMING.lease_s)
    assert not second.must_list(10 + TIMING.lease_s + TIMING.wait_s - 0.1)
    first.listed()
    renew(first, TIMING.lease_s + TIMING.wait_s)
    assert not first.record.fencing_pending


def test_a_deleted_lease_is_recreated_after_the_holders_time() -> None:
    election = standby(None)
    election.record_call(0)
    take(election, 0)
    assert not election.must_list(TIMING.lease_s + TIMING.wait_s - 0.1)
    assert election.must_list(TIMING.lease_s + TIMING.wait_s)


def test_a_recreated_lease_is_not_one_that_was_given_back() -> None:
    """`kubectl delete` and `kubectl apply` recreate it while the holder runs."""
    recreated = Record("", 0, "", 0, "", raw={"metadata": {"uid": "another"}})
    fresh = standby(recreated)
    fresh.record_call(0)
    take(fresh, 0)
    assert fresh.must_list(0), "the process that starts with it holds it at once"
    election = standby(at_s=0)
    election.record_call(10)
    election.observed(recreated, 10)
    take(election, 10)
    assert election.record is not None and election.record.fencing_pending
    assert not election.must_list(10 + TIMING.lease_s + TIMING.wait_s - 0.1)
    assert election.must_list(10 + TIMING.lease_s + TIMING.wait_s)


@pytest.mark.parametrize(
    "record",
    [
        None,
        replace(HOLDER, term=6),
        replace(HOLDER, holder="", term=5),
        Record("me", 6, "here", 8, "t9"),
    ],
    ids=["deleted", "taken", "given back by hand", "another term"],
)
def test_a_process_that_lost_it_may_not_write(record: Record | None) -> None:
    election = holding(0)
    election.observed(record, 1)
    assert election.role is Role.STANDBY and not election.may_write(1)


def test_a_take_without_an_answer_is_repeated_under_a_new_term() -> None:
    election = standby(replace(HOLDER, holder=""))
    election.record_call(0)
    election.observed(replace(HOLDER, holder="me", term=5), 2)
    take(election, 2)
    assert election.record is not None and election.record.term == 6
    assert not election.must_list(2)


def test_a_holder_with_calls_does_not_yield() -> None:
    election = holding(0)
    for at_s in range(1, 100):
        assert election.record is not None
        election.observed(replace(election.record, campaign=campaign(count=at_s)), at_s)
        if at_s % 2:
            election.record_call(at_s)
        election.settle(at_s)
        assert election.role is Role.HOLDING


def test_a_holder_does_not_yield_to_an_old_campaign() -> None:
    election = holding(0)
    assert election.record is not None
    election.observed(replace(election.record, campaign=campaign()), 1)
    election.record_call(2)
    election.observed(replace(election.record, campaign=campaign()), 20)
    election.settle(20)
    assert election.role is Role.HOLDING
    election.observed(replace(election.record, campaign=campaign()), 1)
    assert not election._has_successor(100)


def test_a_holder_without_calls_yields_to_another_installation() -> None:
    election = holding(0)
    for at_s in range(1, int(TIMING.yield_to_other_installation_s) + 1):
        assert election.role is Role.HOLDING
        assert election.record is not None
        update = campaign("elsewhere", "elsewhere", at_s)
        election.observed(replace(election.record, campaign=update), at_s)
        election.settle(at_s)
    assert election.role is Role.RELEASING


def test_a_second_installation_reports_the_holder_as_another_installation() -> None:
    election = standby(replace(HOLDER, installation="elsewhere"))
    assert election.is_held_by_other_installation(1)
    assert not election.is_held_by_other_installation(TIMING.lease_s)
    assert not standby().is_held_by_other_installation(1)
    assert not standby(None).is_held_by_other_installation(1)


def test_a_holder_that_still_waits_does_not_give_the_lease_back() -> None:
    """The next holder would consider it given back cleanly."""
    election = standby(at_s=0)
    election.record_call(TIMING.lease_s)
    take(election, TIMING.lease_s)
    election.leaving = True
    election.settle(TIMING.lease_s)
    assert election.role is Role.ACQUIRING
    election.settle(TIMING.lease_s + TIMING.wait_s)
    assert election.role.value == "releasing"


# --- random runs ---------------------------------------------------------------------------------


@dataclass
class Store:
    """The API server: one Lease with optimistic locking by resourceVersion."""

    record: Record | None = field(default_factory=lambda: Record("", 0, "", 8, "", raw={"v": 0}))
    version: int = 0

    def put(self, record: Record) -> Record | None:
        """None: a conflict."""
        if record.raw != {"v": self.version}:
            return None
        self.version += 1
        self.record = replace(record, raw={"v": self.version})
        return self.record

    def campaign(self, update: Campaign) -> Record:
        assert self.record is not None
        self.version += 1
        self.record = replace(self.record, campaign=update, raw={"v": self.version})
        return self.record


@dataclass
class Process:
    """Runs at its own clock rate; may be paused anywhere except between check and POST (ADR 18)."""

    name: str
    speed: float
    chance: random.Random
    store: Store
    election: Election = field(init=False)
    listed_s: float = 0.0
    """When the list of this term was started."""
    writes: list[tuple[float, float, float, str]] = field(default_factory=list)
    """For each write: the start of the preceding list, its start, its latest end, and the
    writer."""
    mortal: bool = False
    """Killed at times, and restarted with the identities of its killed predecessors."""
    exited: frozenset[str] = frozenset()
    wakes_s: float = 0.0
    posts_over_s: float = 0.0
    work: Generator[float, float] = field(init=False)

    def __post_init__(self) -> None:
        self.election = Election(Candidate(self.name, "here"))
        self.work = self.run()

    def exits(self, true_s: float) -> bool:
        """The server soon ends its pending writes; its client has exited."""
        if not self.mortal or self.chance.random() > 0.04:
            return False
        name = self.election.me.identity
        self.writes = [
            (at, begun_s, min(over_s, true_s + POST_S) if writer == name else over_s, writer)
            for at, begun_s, over_s, writer in self.writes
        ]
        self.exited |= {name}
        life = len(self.exited)
        self.election = Election(Candidate(f"{self.name}.{life}", "here", self.exited))
        self.posts_over_s = 0.0
        return True

    def now_s(self, true_s: float) -> float:
        return 1000 + true_s * self.speed

    def travel_s(self) -> float:
        """Usually milliseconds; sometimes the process or the network stalls."""
        return self.chance.choice([0.001, 0.01, 0.1, 0.5, self.chance.uniform(0, 25)])

    def run(self) -> Generator[float, float]:
        """Yields the duration of other activity; receives the true time."""
        true_s = yield 0.0
        while True:
            election = self.election
            election.settle(self.now_s(true_s))
            sent_s = self.now_s(true_s)
            do = election.step(sent_s, under_way=true_s < self.posts_over_s)
            record = None if do in (Do.READ, Do.CAMPAIGN) else election.record_for(do, f"{true_s}")
            true_s = yield self.travel_s()
            if do is Do.CAMPAIGN:
                seen: Record | None = self.store.campaign(election.campaign())
            elif record is not None:
                seen = self.store.put(record)
            else:
                seen = self.store.record
            true_s = yield self.travel_s()
            if self.exits(true_s):
                true_s = yield self.chance.choice([0.5, 2.0])
                continue
            lost = self.chance.random() < 0.1
            if lost or seen is None:
                do = Do.READ
                seen = self.store.record
            if do in (Do.READ, Do.CAMPAIGN):
                election.observed(seen, self.now_s(true_s))
                if do is Do.CAMPAIGN:
                    election.campaigned(self.now_s(true_s))
            else:
                assert seen is not None
                election.wrote(do, seen, sent_s, self.now_s(true_s))
            if election.must_list(self.now_s(true_s)):
                term = election.record and election.record.term
                begun_s = true_s
                true_s = yield self.chance.uniform(0, 2)
                if election.record and election.record.term == term:
                    election.listed()
                    self.listed_s = begun_s
            true_s = yield self.chance.choice([0.0, 0.0, self.chance.uniform(0, TIMING.window_s)])
            if election.may_write(self.now_s(true_s)):
                # The POST's timeouts at client and server, one after the other, by an accurate
                # clock.
                over_s = true_s + self.chance.choice([0.01, 2 * POST_S])
                self.writes.append((self.listed_s, true_s, over_s, election.me.identity))
                self.posts_over_s = max(self.posts_over_s, over_s)
            true_s = yield self.chance.choice([0.05, 0.3, 1.0, 30.0])
            if self.exits(true_s):
                true_s = yield self.chance.choice([0.5, 2.0])


@pytest.mark.parametrize("mortal", [False, True], ids=["halted", "killed"])
@pytest.mark.parametrize("seed", range(60))
def test_writes_of_a_former_holder_end_before_the_next_one_lists(seed: int, mortal: bool) -> None:
    chance = random.Random(seed)
    store = Store()
    some = [
        Process(
            f"p{n}",
            chance.uniform(0.98, 1.02),
            random.Random(chance.random()),
            store,
            mortal=mortal,
        )
        for n in range(3)
    ]
    for each in some:
        next(each.work)
    record_call, changes_s = some[0], 0.0
    for _ in range(4000):
        process = min(some, key=lambda each: each.wakes_s)
        true_s = process.wakes_s
        if true_s > changes_s:
            record_call, changes_s = chance.choice(some), true_s + chance.choice([1, 10, 60])
        record_call.election.record_call(record_call.now_s(true_s))
        process.wakes_s = true_s + process.work.send(true_s)
    assert sum(len(each.writes) for each in some) > 20
    writes = [write for each in some for write in each.writes]
    assert len({each[-1] for each in writes}) > 1
    for listed_s, begun_s, _, writer in writes:
        for _, earlier_s, over_s, other in writes:
            if other != writer and earlier_s < begun_s:
                assert over_s <= listed_s, (writer, listed_s, begun_s, other, earlier_s, over_s)
