"""The right to bind, from kube-scheduler's Lease, in virtual time.

Random runs: test_leadership_runs.py. With a real API server: tests/cluster/test_leader.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpuslice.contract import names
from scheduler.kubernetes.facts import SchedulerLease
from scheduler.kubernetes.leases import scheduler_lease
from scheduler.leadership import ANSWERED_S, MIN_LEASE_S, POST_S, TIMEOUT_S, Leadership
from tests.scheduler import virtual_time

OURS, OTHER = "pod-a_1", "pod-b_1"
WINDOW_S = MIN_LEASE_S - 2 * POST_S - 0.5
LONG_AGO_S = -1000.0
"""Of the wall clock, which is the loop's in these tests."""


class Scene:
    """list_s: how long a list of all objects takes."""

    def __init__(self) -> None:
        self.lists = 0
        self.list_s = 1.0
        self.leadership = Leadership("pod-a", virtual_time.now, virtual_time.now)

    async def list(self) -> None:
        self.lists += 1
        await asyncio.sleep(self.list_s)

    def see(self, holder: str, acquired_s: float = LONG_AGO_S, duration_s: float = 15.0) -> None:
        """The watch reports the Lease, renewed now."""
        lease = SchedulerLease(holder, duration_s, acquired_s, virtual_time.now())
        self.leadership.observe(lease)

    async def renewed_until(
        self, when: Callable[[], bool], holder: str = OURS, **lease: float
    ) -> float:
        """Renews the Lease until the condition holds. Returns the seconds that it took."""
        begun_s = virtual_time.now()
        while not when():
            assert virtual_time.now() - begun_s < 100
            self.see(holder, **lease)
            await asyncio.sleep(0.25)
        return virtual_time.now() - begun_s

    async def leads(self) -> None:
        await self.renewed_until(self.leadership.may_write)

    async def acquired(self, duration_s: float = 15.0) -> float:
        """The Lease is acquired now. Returns the seconds until the process may write, without those
        of its list."""
        now_s = virtual_time.now()
        lease: dict[str, Any] = {"acquired_s": now_s, "duration_s": duration_s}
        return await self.renewed_until(self.leadership.may_write, **lease) - self.list_s


@pytest.fixture(autouse=True)
def loop_factory() -> type[virtual_time.Loop]:
    return virtual_time.Loop


@pytest.fixture
@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    running = asyncio.create_task(made.leadership.run(made.list))
    yield made
    assert not running.done()
    running.cancel()
    await asyncio.wait([running])


async def test_it_binds_while_the_lease_names_its_pod_and_is_renewed(scene: Scene) -> None:
    leadership = scene.leadership
    assert not leadership.may_write()
    await scene.leads()
    assert leadership.writer == OURS and leadership.refusal() == ""
    assert f"this process binds: {OURS} of this pod holds the Lease" in leadership.status
    scene.see(OURS)
    await asyncio.sleep(WINDOW_S - 0.1)
    assert leadership.may_write()
    await asyncio.sleep(0.2)
    assert not leadership.may_write()
    assert "has not renewed the Lease gpuslice-system/gpuslice-kube" in leadership.refusal()
    scene.see(OURS)
    assert leadership.may_write()
    assert scene.lists == 1


async def test_a_renewal_that_arrives_late_is_as_old_as_its_time(scene: Scene) -> None:
    await scene.leads()
    await asyncio.sleep(10)
    renewed_s = virtual_time.now() - WINDOW_S - 0.1
    scene.leadership.observe(SchedulerLease(OURS, 15.0, LONG_AGO_S, renewed_s))
    assert not scene.leadership.may_write()


@pytest.mark.parametrize("ends", ["deleted", "released", "taken", "not timed"])
async def test_without_a_lease_that_names_its_pod_it_binds_nothing(scene: Scene, ends: str) -> None:
    await scene.leads()
    match ends:
        case "deleted":
            scene.leadership.observe(None)
        case "released":
            scene.see("")
        case "taken":
            scene.see(OTHER)
        case "not timed":
            scene.leadership.observe(SchedulerLease(OURS, 15.0))
    assert not scene.leadership.may_write()
    if ends == "taken":
        assert scene.leadership.status.startswith(f"on standby; {OTHER} holds the Lease")
    scene.see(OURS)
    assert scene.leadership.may_write() is (ends == "not timed")
    await scene.leads()
    assert scene.lists == (1 if ends == "not timed" else 2)


@pytest.mark.parametrize("duration_s", [4.0, 15.0, 60.0])
async def test_after_another_holder_it_waits_until_that_ones_writes_have_ended(
    scene: Scene, duration_s: float
) -> None:
    await asyncio.sleep(100)
    scene.see(OTHER, duration_s=duration_s)
    await asyncio.sleep(1)
    assert 0 <= await scene.acquired(duration_s) - (max(15.0, duration_s) - 1) <= 0.5


@pytest.mark.parametrize("before", [OTHER, ""], ids=["expired", "released"])
async def test_after_the_lease_is_acquired_it_waits_for_what_the_api_server_had_read(
    scene: Scene, before: str
) -> None:
    """Of a process that was halted, or before the release."""

    scene.see(OTHER)
    await asyncio.sleep(100)
    scene.see(before)
    await asyncio.sleep(15 if before else 0)
    assert 0 <= await scene.acquired() - ANSWERED_S <= 0.5


async def test_after_its_start_it_waits_for_what_an_earlier_process_of_the_pod_sent(
    scene: Scene,
) -> None:
    took_s = await scene.renewed_until(scene.leadership.may_write)
    assert 0 <= took_s - (ANSWERED_S + scene.list_s) <= 0.5


async def test_a_restarted_kube_scheduler_begins_a_new_term(scene: Scene) -> None:
    await scene.leads()
    await scene.renewed_until(lambda: scene.leadership.writer == "pod-a_2", "pod-a_2")
    assert scene.lists == 2


async def test_a_holder_that_changes_during_the_list_begins_no_term(scene: Scene) -> None:
    scene.list_s = 20.0
    await scene.renewed_until(lambda: scene.lists == 1)
    scene.see(OTHER)
    await asyncio.sleep(1)
    scene.see(OURS)
    await asyncio.sleep(20)
    scene.see(OURS)
    assert not scene.leadership.may_write()
    await scene.leads()
    assert scene.lists == 2


async def test_a_verb_waits_briefly_for_the_term_and_not_for_another_holder(scene: Scene) -> None:
    await asyncio.sleep(100)
    scene.see(OURS)
    scene.list_s = TIMEOUT_S / 2
    assert await scene.leadership.admit() == ""
    scene.see(OTHER)
    begun_s = virtual_time.now()
    assert OTHER in await scene.leadership.admit()
    assert virtual_time.now() == begun_s
    scene.leadership.observe(None)
    assert "no kube-scheduler holds" in await scene.leadership.admit()
    assert virtual_time.now() == begun_s + TIMEOUT_S


async def test_a_process_that_leaves_writes_nothing(scene: Scene) -> None:
    await scene.leads()
    scene.leadership.leaving = True
    assert "is shutting down" in scene.leadership.refusal()


async def test_calls_while_another_pod_holds_the_lease_are_of_a_second_installation(
    scene: Scene,
) -> None:
    leadership = scene.leadership
    await scene.leads()

    async def called(for_s: float) -> None:
        for _ in range(int(for_s / 5)):
            scene.see(OTHER)
            leadership.record_call()
            await asyncio.sleep(5)

    await called(15)
    assert not leadership.second_installation, "a failover takes as long"
    await called(15)
    assert leadership.second_installation
    for _ in range(4):
        scene.see(OTHER)
        await asyncio.sleep(5)
    assert not leadership.second_installation, "kube-scheduler does not call any more"


def _raw(**spec: Any) -> dict[str, Any]:
    metadata = {"namespace": names.NAMESPACE, "name": names.LEASE_KUBE_SCHEDULER}
    return {"metadata": metadata, "spec": spec}


@pytest.mark.parametrize(
    ("raw", "lease"),
    [
        (_raw(), SchedulerLease()),
        (
            _raw(
                holderIdentity="a_1",
                leaseDurationSeconds=15,
                acquireTime="1970-01-01T00:00:01.500000Z",
                renewTime="1970-01-01T00:00:02.000000Z",
            ),
            SchedulerLease("a_1", 15.0, 1.5, 2.0),
        ),
        (
            _raw(holderIdentity=None, leaseDurationSeconds="x", renewTime="yesterday"),
            SchedulerLease(),
        ),
        ({"metadata": {"namespace": "default", "name": names.LEASE_KUBE_SCHEDULER}}, None),
        ({"metadata": {"namespace": names.NAMESPACE, "name": "agent-n"}}, None),
    ],
)
def test_the_lease_is_read_tolerantly(raw: dict[str, Any], lease: SchedulerLease | None) -> None:
    assert scheduler_lease(raw) == lease
