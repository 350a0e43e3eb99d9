"""The state of each running grant, by the API server's answers about its pod, and by time."""

from __future__ import annotations

import logging

import pytest

from contract import names
from nri_plugin.kube.verification import WITHIN_S, GrantState, Verification
from nri_plugin.metrics import Metrics
from nri_plugin.policy import ledger
from nri_plugin.policy.bound_pods import BoundPods
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Pod, Share
from nri_plugin.policy.notices import Notices
from nri_plugin.readiness import Readiness
from tests.nri_plugin.policy.test_bound_pods import GPUS, bound
from tests.support import GIB


class Bench:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.bounds, self.notices, self.metrics = BoundPods(), Notices(), Metrics()
        self.readiness = Readiness(lambda: 0.0)
        self.holds: list[Hold] = []

        async def look_up(pod: Pod) -> None:
            raise NotImplementedError

        self.bounds.look_up = look_up
        self.verification = Verification(
            self.bounds,
            lambda: tuple(self.holds),
            lambda: GPUS,
            self.notices,
            self.readiness,
            self.metrics,
            lambda: self.now_s,
        )

    def runs(self, uid: str, memory_bytes: int = GIB) -> None:
        pod, share = bound(uid).pod, Share("GPU-0", 0, memory_bytes, 10)
        self.holds.append(ledger.hold(f"c-{uid}", uid, False, pod, "main", [share]))

    def check(self, later_s: float = 0.0) -> dict[GrantState, int]:
        self.now_s += later_s
        self.verification.check()
        value = self.metrics.registry.get_sample_value
        counts = {s: value("gpuslice_grants", {"verification": s.value}) for s in GrantState}
        return {state: int(count) for state, count in counts.items() if count}

    @property
    def unknown(self) -> list[str]:
        return [pod.uid for pod in self.verification.unknown]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_each_grant_has_its_state(bench: Bench) -> None:
    for uid, memory_bytes in (("honest", GIB), ("greedy", GIB + 1), ("forged", GIB)):
        bench.bounds.put(bound(uid, scheduled="" if uid == "forged" else "2026"), listing=False)
        bench.runs(uid, memory_bytes)
    bench.bounds.confirm(bound("asked"))
    bench.bounds.deny("denied", "there is no such pod")
    for uid in ("asked", "denied", "unheard"):
        bench.runs(uid)
    assert bench.check() == {
        GrantState.CONFIRMED: 2,
        GrantState.MISMATCH: 2,
        GrantState.POD_NOT_FOUND: 1,
        GrantState.UNKNOWN: 1,
    }
    message = []
    while (notice := bench.notices.first()) is not None:
        message.append((notice.pod.uid, notice.reason))
        bench.notices.done(notice)
    assert {(uid, names.EVENT_GRANT_REFUSED) for uid in ("greedy", "forged")} < {*message}
    assert bench.verification.over == {}
    assert bench.unknown == ["unheard"]
    bench.holds.clear()
    assert bench.check() == {}


def test_a_pod_without_an_answer_is_reported_after_a_while(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for number in range(6):
        bench.runs(f"{number}")
    assert bench.check() == {GrantState.UNKNOWN: 6}
    assert not bench.readiness.notes
    for _ in range(2):
        bench.check(later_s=WITHIN_S)
    (note,) = bench.readiness.notes
    assert "team/pod-0/main, " in note and note.endswith(", and 2 more")
    assert bench.readiness.problems  # not from this: it was never synchronized
    assert len(caplog.records) == 1
    for number in range(6):
        bench.bounds.put(bound(f"{number}"), listing=False)
    assert bench.check() == {GrantState.CONFIRMED: 6}
    assert bench.readiness.notes == ()
    assert len(caplog.records) == 2


def test_a_container_without_a_pod_is_logged_and_reported_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.runs("a")
    bench.bounds.deny("a", "there is no such pod")
    for _ in range(3):
        assert bench.check(later_s=1) == {GrantState.POD_NOT_FOUND: 1}
    notice = bench.notices.first()
    assert notice is not None
    assert (notice.of_node, notice.reason) == (True, names.EVENT_GRANT_UNCONFIRMED)
    assert "team/pod-a/main (pod UID a)" in notice.text and "no such pod" in notice.text
    bench.notices.done(notice)
    assert bench.notices.first() is None
    assert len(caplog.records) == 1


def test_containers_of_a_deleted_pod_have_a_minute_to_stop(bench: Bench) -> None:
    bench.bounds.put(bound("a"), listing=False)
    bench.runs("a")
    assert bench.check() == {GrantState.CONFIRMED: 1}
    bench.bounds.deleted("a")
    for _ in range(6):
        assert bench.check(later_s=10) == {GrantState.UNKNOWN: 1}
        assert (bench.unknown, bench.readiness.notes) == ([], ())
    bench.check(later_s=10)
    assert bench.unknown == ["a"]
