"""Each running grant's state, from the API server's answers about its pod, and from time."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuslice.contract import names
from gpuslice.kube.reflector import UNLISTED
from nri_plugin.kube.cluster import Cluster, _Pods
from nri_plugin.kube.verification import ABSENT_S, WITHIN_S, GrantState, Verification
from nri_plugin.policy import ledger
from nri_plugin.policy.bound_pods import BoundPods
from nri_plugin.policy.gpu_modes import GpuModes, Offer
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Share
from nri_plugin.readiness import Readiness
from tests.nri_plugin.kube.test_reports import during
from tests.nri_plugin.objects import parts, settings
from tests.nri_plugin.policy.test_bound_pods import GPUS, bound
from tests.support import GIB, Clock


class Bench:
    def __init__(self) -> None:
        self.clock = Clock()
        self.agent = agent = parts(settings(), readiness=Readiness(lambda: 0.0))
        agent.inventory.seen = GPUS
        self.bounds, self.notices, self.readiness = agent.bound_pods, agent.notices, agent.readiness
        self.holds: list[Hold] = []
        self.verification = Verification(agent, self.clock)

    def runs(self, uid: str, memory_bytes: int = GIB, granted_bytes: int = GIB) -> None:
        pod, share = bound(uid, granted_bytes).pod, Share("GPU-0", 0, memory_bytes, 10)
        self.holds.append(ledger.hold(f"c-{uid}", uid, pod, "main", [share]))

    def check(self, later_s: float = 0.0, watching: bool = True) -> dict[GrantState, int]:
        self.clock.seconds += later_s
        self.agent.ledger.adopt(self.holds, ())
        self.verification.check(watching)
        value = self.agent.metrics.registry.get_sample_value
        counts = {s: value("gpuslice_grants", {"verification": s.value}) for s in GrantState}
        return {state: int(count) for state, count in counts.items() if count}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_pod_is_known_to_be_of_a_list_or_of_the_watch() -> None:
    put: list[tuple[str, bool]] = []
    bounds = SimpleNamespace(put=lambda found, listing: put.append((found.pod.uid, listing)))
    pods = _Pods(cast(BoundPods, bounds), iter((True, False)).__next__)
    for uid in "ab":
        assert pods.observed({"metadata": {"uid": uid}}) == uid
    assert put == [("a", True), ("b", False)]


def test_each_grant_has_its_state_and_is_reported_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for uid, memory_bytes in (("honest", GIB), ("greedy", GIB + 1), ("forged", GIB)):
        bench.bounds.put(bound(uid, scheduled="" if uid == "forged" else "2026"), listing=False)
        bench.runs(uid, memory_bytes)
    bench.runs("absent")
    bench.check()
    bench.clock.seconds += ABSENT_S
    bench.runs("new")
    for _ in range(2):
        assert bench.check() == {
            GrantState.CONFIRMED: 1,
            GrantState.MISMATCH: 2,
            GrantState.POD_NOT_FOUND: 1,
            GrantState.UNKNOWN: 1,
        }
    reasons = []
    while (notice := bench.notices.first()) is not None:
        reasons.append((notice.pod.uid, notice.reason, notice.of_node, notice.action))
        bench.notices.done(notice)
        text = notice.text
    refused = [(uid, names.EVENT_GRANT_REFUSED, False, "Run") for uid in ("greedy", "forged")]
    assert reasons == [*refused, ("absent", names.EVENT_GRANT_UNCONFIRMED, True, "Start")]
    assert "team/pod-absent/main (pod UID absent)" in text and "no such pod" in text
    assert len(caplog.records) == 3
    bench.holds.clear()
    assert bench.check() == {}


def test_grants_without_an_api_server_are_reported_after_a_while(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for number in range(6):
        bench.runs(f"{number}")
    assert bench.check(watching=False) == {GrantState.UNKNOWN: 6}
    assert not bench.readiness.notes
    for _ in range(3):
        bench.check(later_s=WITHIN_S, watching=False)
    (note,) = bench.readiness.notes
    assert "team/pod-0/main, " in note and note.endswith(", and 2 more")
    # The agent is not ready only because it has no session and has not inspected the node.
    assert bench.readiness.problems
    assert len(caplog.records) == 1
    for number in range(6):
        bench.bounds.put(bound(f"{number}"), listing=False)
    assert bench.check() == {GrantState.CONFIRMED: 6}
    assert bench.readiness.notes == ()
    assert len(caplog.records) == 2


def test_a_pod_is_not_absent_while_the_api_server_does_not_answer(bench: Bench) -> None:
    """A deleted pod's containers have a minute to stop once the watch is in sync again."""
    bench.bounds.put(bound("a"), listing=False)
    bench.runs("a")
    assert bench.check() == {GrantState.CONFIRMED: 1}
    bench.bounds.deleted("a")
    for watching in (True, False, True):
        bench.check(watching=watching)
        assert bench.check(later_s=ABSENT_S - 1, watching=watching) == {GrantState.UNKNOWN: 1}
        assert [each.endswith("/main") for each in bench.readiness.notes] == [True] * (not watching)
    assert bench.check(later_s=1) == {GrantState.POD_NOT_FOUND: 1}


async def test_the_state_of_the_watches_is_reported(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod whose GPU is gone gets an event, but not before NVML's first answer."""
    caplog.set_level(logging.INFO)
    bench.runs("a")
    bench.check()
    cluster, metric, found = Cluster(bench.agent, GpuModes(Offer())), bench.agent.metrics.api_up, []
    monkeypatch.setattr(Verification, "check", lambda _, watching: found.append(watching))
    for synced, problems, gpus in (
        (False, {"pods": UNLISTED}, ()),
        (True, {"pods": ""}, GPUS[1:]),
        (True, {"pods": "refused"}, GPUS),
        (True, {"pods": "refused"}, GPUS),
        (True, {"pods": "", "Device": "gone"}, GPUS),
        (True, {"pods": "", "Device": ""}, GPUS),
    ):
        bench.agent.inventory.seen = gpus
        watches = {n: SimpleNamespace(synced=synced, problem=text) for n, text in problems.items()}
        await during(0, cluster._observe(cast(Any, watches)))
        found += [metric._value.get(), bench.notices.first() is not None]
    up, refused, gone = (True, 1, True), (False, 0, True), (True, 0, True)
    assert found == [False, 0, False, *up, *refused, *refused, *gone, *up]
    first, second, third = caplog.messages
    assert "pods: refused" in first and "Device: gone" in second and "reachable again" in third
