"""The cache, with an API server that behaves in ways hard to provoke in a real one.

tests/cluster/test_service.py uses a real API server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from gpuslice.contract import names
from scheduler.cache import BUDGETS, DEVICES, LEASES, NODES, PODS, Cache, _Leases
from scheduler.core.reasons import Reason
from scheduler.decisions.requeue import Unschedulable
from scheduler.decisions.state import State
from scheduler.decisions.unserved import AFTER_S, Unserved
from scheduler.kubernetes.facts import PodFacts, SchedulerLease
from tests.kube.api_server import client_of, event, lines, listed, refuse, stream
from tests.scheduler import objects
from tests.scheduler.objects import RENEWED_S, allocated, container, lease, pod
from tests.support import until_async

ASKS = container("main", ratio=50)


def bound(uid: str) -> dict[str, Any]:
    held = allocated(("GPU-a", 0, objects.resources(memory="12Gi")))
    annotations = {names.ANNOTATION_DEVICE_ALLOCATED: held}
    return pod(ASKS, uid=uid, node="n1", annotations=annotations)


class Server:
    """Serves the objects of a one-node cluster. `watches` has a list by path. Each entry is one
    watch: a list of events, or the status of a refusal."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.objects: dict[str, list[dict[str, Any]]] = {
            NODES: [objects.node("n1")],
            DEVICES: [objects.device("n1", objects.gpu("GPU-a", 0))],
            LEASES: [lease("n1")],
            PODS: list(pods),
            BUDGETS: [],
        }
        self.watches: dict[str, list[list[dict[str, Any]] | int]] = {}
        self.versions: list[str] = []
        """The resourceVersion of each watch of pods, and "" for each list of pods."""
        self.refused = ""
        """The path that the server refuses."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == PODS:
            self.versions.append(request.query.get("resourceVersion", ""))
        if request.path == self.refused:
            return refuse(404, "Refused")
        if "watch" not in request.query:
            return listed(*self.objects[request.path], version="10")
        scripts = self.watches.get(request.path) or [[]]
        script = scripts.pop(0)
        if isinstance(script, int):
            return refuse(script, "Refused")
        return await stream(request, lines(*script), hold=not scripts)


@asynccontextmanager
async def running(
    server: Server,
    state: State | None = None,
    wall: Callable[[], float] = lambda: RENEWED_S,
    queue: Unschedulable | None = None,
    unserved: Unserved | None = None,
) -> Any:
    state = state or State()
    async with client_of(server.answer) as kube:
        cache = Cache(kube, state, lambda: 0.0, lambda: 0.0, wall, queue, unserved=unserved)
        task = asyncio.create_task(cache.run())
        try:
            yield cache, state
        finally:
            task.cancel()
            await asyncio.wait({task})


async def test_the_cache_is_complete_once_it_is_synced() -> None:
    async with running(Server(bound("u-1"))) as (cache, state):
        assert not cache.synced
        assert set(cache.ages().values()) == {float("inf")}
        await cache.wait_synced()
        assert cache.synced
        assert state.is_bound("u-1")
        assert set(cache.ages().values()) == {0.0}
        await until_async(lambda: not cache.problems())
        cache._kube.problem = "credentials: gone"
        assert cache.problems() == ["credentials: gone"]
        assert set(cache.lists().values()) == {1}


def refused(uid: str, reason: str = "Unschedulable") -> dict[str, Any]:
    """Return a pod that kube-scheduler found unschedulable."""
    raw = pod(ASKS, uid=uid)
    raw["spec"]["schedulerName"] = names.SCHEDULER_NAME
    condition = {"type": "PodScheduled", "status": "False", "reason": reason}
    raw["status"]["conditions"] = [condition]
    return raw


async def test_restored_pods_leave_the_queue_when_they_are_bound_or_deleted() -> None:
    waiting = refused("a"), refused("b"), refused("c"), refused("gated", "SchedulingGated")
    server, state = Server(*waiting, pod(uid="new")), State()
    queue = Unschedulable(state)
    gone, ours = event("DELETED", refused("a"), "11"), event("MODIFIED", bound("b"), "12")
    server.watches[PODS] = [[gone, ours]]
    async with running(server, state, queue=queue) as (cache, _):
        await cache.wait_synced()
        await until_async(lambda: state.is_bound("b"))
        assert len(queue) == 1


async def test_a_nomination_reserves_until_it_is_withdrawn_or_the_pod_is_deleted() -> None:
    nominated, gone, deleted, other = (refused(uid) for uid in ("a", "a", "b", "other"))
    for raw in (nominated, deleted, other):
        raw["status"]["nominatedNodeName"] = "n1"
    other["spec"]["schedulerName"] = "default-scheduler"
    ending = {**deleted, "metadata": {**deleted["metadata"], "deletionTimestamp": "now"}}
    server, state = Server(nominated, deleted, other), State()
    budget = {"metadata": {"namespace": "default", "name": "b"}, "spec": {}}
    server.objects[BUDGETS] = [{**budget, "spec": {"selector": {"matchLabels": {"x": "y"}}}}]
    async with running(server, state) as (cache, _):
        await cache.wait_synced()
        pods = cache._reflectors["pods"].sink
        await until_async(lambda: len(state.reservations) == 2)
        ours = PodFacts("u", "default", "u", "n1", False, (), labels={"x": "y"})
        assert state.budgets.violating([ours]) == {"u"}
        pods.observed(gone)
        assert len(state.reservations) == 1
        pods.observed(ending)
        assert not len(state.reservations)


async def test_unserved_pods_are_forgotten_when_they_are_bound_or_deleted() -> None:
    server, now_s = Server(*(pod(ASKS, uid=uid) for uid in "abc")), [0.0]
    of_node = bound("b")
    for each in (*server.objects[PODS], of_node):
        each["spec"]["schedulerName"] = "other"
    unserved = Unserved((), lambda: now_s[0])
    server.watches[PODS] = [
        [event("DELETED", pod(uid="a"), "11"), event("MODIFIED", of_node, "12")]
    ]
    async with running(server, unserved=unserved) as (_, state):
        await until_async(lambda: state.is_bound("b"))
        now_s[0] = AFTER_S
        assert [each.uid for each in unserved.problems()] == ["c"]


async def test_a_broken_watch_of_leases_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.cache._TICK_S", 0.01)
    server = Server()
    async with running(server, wall=lambda: RENEWED_S + 41.0) as (cache, state):
        await cache.wait_synced()
        server.refused = LEASES
        relist = asyncio.create_task(cache.relist())
        await until_async(lambda: Reason.LEASES_LOST in state.fleet.blocked_by)
        server.refused = ""
        await until_async(lambda: Reason.AGENT_LEASE_EXPIRED in state.fleet.blocked_by)
        await relist


async def test_a_watch_resumes_at_its_last_version() -> None:
    server = Server()
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "33"}}}
    server.watches[PODS] = [[event("ADDED", bound("u-1"), "11"), bookmark], [], 503, []]
    async with running(server) as (_, state):
        await until_async(lambda: len(server.versions) >= 5)
        assert server.versions[:5] == ["", "10", "33", "33", "33"]
        assert state.is_bound("u-1")


@pytest.mark.parametrize("code", [410, 500, 504])
async def test_after_an_uncertain_watch_all_objects_are_relisted(code: int) -> None:
    """During the relist, the state may contain both pods. So too little capacity seems free."""
    server = Server(bound("u-1"))
    server.watches[PODS] = [code, []]
    async with running(server) as (cache, state):
        await cache.wait_synced()
        server.objects[PODS] = [bound("u-2")]
        await until_async(lambda: state.is_bound("u-2") and not state.is_bound("u-1"))
        assert cache.synced


async def test_a_list_that_fails_is_reported_and_retried() -> None:
    server = Server()
    server.refused = DEVICES
    async with running(server) as (cache, _):
        await until_async(lambda: "devices: Refused" in cache.problems())
        assert not cache.synced
        server.refused = ""
        await cache.wait_synced()
        await until_async(lambda: not cache.problems())


@pytest.mark.parametrize(("later_s", "expired"), [(39.0, False), (41.0, True), (-3600.0, False)])
async def test_an_agents_first_lease_has_the_agents_time(later_s: float, expired: bool) -> None:
    """A restarted extender can detect an expired Lease only by the time that the agent wrote."""
    async with running(Server(), wall=lambda: RENEWED_S + later_s) as (cache, state):
        await cache.wait_synced()
        blocked_by = state.fleet.blocked_by[state.fleet.row_of("n1")]
        assert blocked_by == (Reason.AGENT_LEASE_EXPIRED if expired else Reason.FITS)


def test_kube_schedulers_lease_is_reported_and_so_is_its_absence() -> None:
    seen: list[SchedulerLease | None] = []
    leases = _Leases(lambda facts: None, lambda node: None, seen.append)
    metadata = {"namespace": names.NAMESPACE, "name": names.LEASE_KUBE_SCHEDULER}
    raw = {"metadata": metadata, "spec": {"holderIdentity": "a_1"}}
    key, agent = leases.observed(raw), leases.observed(lease("n0"))
    leases.listed({key, agent})
    leases.deleted(lease("n0"))
    assert seen == [SchedulerLease("a_1")]
    leases.deleted(raw)
    assert seen[1:] == [None]
    leases.listed({agent})
    assert seen[1:] == [None, None]
