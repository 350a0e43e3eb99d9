"""The right to bind, taken from kube-scheduler's Lease, in virtual time.

test_leadership_runs.py has random runs. tests/cluster/test_service.py uses a real API server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from gpuslice.contract import names
from scheduler.kubernetes.facts import SchedulerLease
from scheduler.kubernetes.leases import scheduler_lease
from scheduler.leadership import ANSWERED_S, MIN_LEASE_S, POST_S, TIMEOUT_S, Leadership
from tests.virtual_time import loop_factory as loop_factory
from tests.virtual_time import now

OURS, OTHER = "pod-a_1", "pod-b_1"
WINDOW_S = MIN_LEASE_S - 2 * POST_S - 0.5
LONG_AGO_S = -1000.0
"""A time before any test begins. In these tests, the loop's clock is also the wall clock."""


class Scene:
    """The `Leadership` of pod-a's extender. list_s: how long a list of all objects takes."""

    def __init__(self) -> None:
        self.lists = 0
        self.list_s = 1.0
        self.leadership = Leadership("pod-a", now, now)

    async def list(self) -> None:
        self.lists += 1
        await asyncio.sleep(self.list_s)

    def see(self, holder: str, acquired_s: float = LONG_AGO_S, duration_s: float = 15.0) -> None:
        """Let the watch report the Lease, renewed now."""
        self.leadership.observe(SchedulerLease(holder, duration_s, acquired_s, now()))

    async def renewed_until(
        self, when: Callable[[], bool], holder: str = OURS, **lease: float
    ) -> float:
        """Renew the Lease until the condition holds. Return the seconds that this took."""
        begun_s = now()
        while not when():
            assert now() - begun_s < 100
            self.see(holder, **lease)
            await asyncio.sleep(0.25)
        return now() - begun_s

    async def leads(self, **lease: float) -> float:
        """Return the seconds until pod-a may write, less the duration of its list."""
        return await self.renewed_until(self.leadership.may_write, OURS, **lease) - self.list_s

    async def acquires(self, duration_s: float = 15.0) -> float:
        return await self.leads(acquired_s=now(), duration_s=duration_s)


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
    await asyncio.sleep(WINDOW_S - 0.25)
    assert leadership.may_write()
    await asyncio.sleep(0.25)
    assert not leadership.may_write()
    assert "has not renewed the Lease gpuslice-system/gpuslice-kube" in leadership.refusal()
    scene.see(OURS)
    assert leadership.may_write()
    assert scene.lists == 1
    leadership.leaving = True
    assert "is shutting down" in leadership.refusal() and not leadership.may_write()


ENDS: dict[str, SchedulerLease | None] = {
    "deleted": None,
    "released": SchedulerLease("", 15.0, LONG_AGO_S, 0.0),
    "taken": SchedulerLease(OTHER, 15.0, LONG_AGO_S, 0.0),
    "not timed": SchedulerLease(OURS, 15.0),
}


@pytest.mark.parametrize("ends", ENDS)
async def test_without_a_lease_that_names_its_pod_it_binds_nothing(scene: Scene, ends: str) -> None:
    await scene.leads()
    scene.leadership.observe(ENDS[ends])
    assert not scene.leadership.may_write()
    if ends == "taken":
        assert scene.leadership.status.startswith(f"on standby; {OTHER} holds the Lease")
    scene.see(OURS)
    assert scene.leadership.may_write() is (ends == "not timed")
    await scene.leads()
    assert scene.lists == (1 if ends == "not timed" else 2)


@pytest.mark.parametrize("duration_s", [4.0, 15.0, 60.0])
async def test_it_waits_until_another_holders_writes_end(scene: Scene, duration_s: float) -> None:
    await asyncio.sleep(100)
    scene.see(OTHER, duration_s=duration_s)
    await asyncio.sleep(1)
    assert 0 <= await scene.acquires(duration_s) - (max(15.0, duration_s) - 1) <= 0.5


@pytest.mark.parametrize("before", ["expired", "released", "deleted", "just started"])
async def test_it_waits_for_what_was_sent_before(scene: Scene, before: str) -> None:
    """A Binding of the former writer may still arrive. That writer was halted, released the Lease,
    or was an earlier process of the same pod. It may be at work if the Lease was deleted."""
    if before == "just started":
        took_s = await scene.leads()
    else:
        await asyncio.sleep(100)
        scene.see(OTHER)
        if before in ENDS:
            scene.leadership.observe(ENDS[before])
        await asyncio.sleep(15 if before == "expired" else 0)
        took_s = await scene.acquires()
    assert 0 <= took_s - (MIN_LEASE_S if before == "deleted" else ANSWERED_S) <= 0.5


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
    begun_s = now()
    assert OTHER in await scene.leadership.admit()
    assert now() == begun_s
    scene.leadership.observe(None)
    assert "no kube-scheduler holds" in await scene.leadership.admit()
    assert now() == begun_s + TIMEOUT_S


async def test_calls_beside_another_holder_are_of_a_second_installation(scene: Scene) -> None:
    await scene.leads()

    async def is_reported(times: int, called: bool = True) -> bool:
        """Let the other pod renew the Lease every 5 s. If `called`, pod-a is called each time."""
        for _ in range(times):
            scene.see(OTHER)
            if called:
                scene.leadership.record_call()
            await asyncio.sleep(5)
        return scene.leadership.second_installation

    assert not await is_reported(4), "a failover takes as long"
    assert await is_reported(1)
    assert await is_reported(12, called=False), "kube-scheduler may pause for 60 s"
    assert await is_reported(1)
    assert not await is_reported(14, called=False), "kube-scheduler does not call any more"


def test_the_lease_is_read_tolerantly() -> None:
    of_kube_scheduler = {"namespace": names.NAMESPACE, "name": names.LEASE_KUBE_SCHEDULER}
    renewed = {
        "holderIdentity": "a_1",
        "leaseDurationSeconds": 15,
        "acquireTime": "1970-01-01T00:00:01.500000Z",
        "renewTime": "1970-01-01T00:00:02.000000Z",
    }
    broken = {"holderIdentity": None, "leaseDurationSeconds": "x", "renewTime": "yesterday"}
    for spec, lease in (
        (renewed, SchedulerLease("a_1", 15.0, 1.5, 2.0)),
        (broken, SchedulerLease()),
        ({}, SchedulerLease()),
    ):
        assert scheduler_lease({"metadata": of_kube_scheduler, "spec": spec}) == lease
    for other in ({"namespace": "default"}, {"name": "agent-n"}):
        assert scheduler_lease({"metadata": of_kube_scheduler | other, "spec": renewed}) is None
