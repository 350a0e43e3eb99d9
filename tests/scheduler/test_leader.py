"""Holding the Lease over HTTP, with an API server that answers and one that fails.

With a real API server, and with stopped and killed processes: tests/cluster/test_leader.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from aiohttp import web

from gpuslice.contract import names
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from scheduler.leader import Leader, boot_clock
from scheduler.leadership.election import POST_S, Candidate, Role, Timing
from scheduler.leadership.lease import PATH
from scheduler.metrics import Metrics
from tests.kube.api_server import client_of, json, refuse
from tests.support import until_async

DEADLINE_S = 30.0


@dataclass
class Server:
    """One Lease with optimistic locking, as at an API server."""

    lease: dict[str, Any] | None = field(
        default_factory=lambda: {"metadata": {"resourceVersion": "1"}, "spec": {}}
    )
    version: int = 1
    failing: int = 0
    """HTTP status of all answers; 0: success."""
    methods: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.methods.append(request.method)
        if self.failing:
            return refuse(self.failing, "Failing")
        if self.lease is None and request.method != "POST":
            return refuse(404, "NotFound")
        if request.method == "GET":
            return json(self.lease)
        assert request.method == "POST" or request.path == PATH
        body = orjson.loads(await request.read())
        if request.method == "PATCH":
            assert self.lease is not None
            annotations = self.lease["metadata"].setdefault("annotations", {})
            annotations.update(body["metadata"]["annotations"])
            body = self.lease
        elif request.method == "POST" and self.lease is not None:
            return refuse(409, "AlreadyExists")
        elif request.method == "PUT":
            assert self.lease is not None
            given = body["metadata"]["resourceVersion"]
            if given != self.lease["metadata"]["resourceVersion"]:
                return refuse(409, "Conflict")
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.lease = body
        return json(body)

    @property
    def holder(self) -> str:
        return str(self.lease["spec"].get("holderIdentity")) if self.lease else ""


class Clock:
    """The host's clock plus the test's offset."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return boot_clock() + self.ahead_s


async def nothing() -> None:
    return


@asynccontextmanager
async def leading(
    kube: Kube,
    name: str = "a",
    installation: str = "here",
    relist: Callable[[], Awaitable[None]] = nothing,
    clock: Callable[[], float] = boot_clock,
    timing: Timing | None = None,
) -> AsyncIterator[Leader]:
    leader = Leader(kube, Candidate(name, installation), relist, Metrics(), clock, timing)
    running = asyncio.create_task(leader.run())
    try:
        yield leader
        if running.done():
            running.result()
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def admitted(leader: Leader) -> None:
    """Calls `admit` repeatedly, as kube-scheduler retries its pods."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if not await leader.admit():
                return
            await asyncio.sleep(0.01)


async def ends(leader: Leader) -> None:
    leader.leave()
    await until_async(lambda: leader.role is Role.STANDBY)


def value(leader: Leader, name: str) -> float | None:
    return leader._metrics.registry.get_sample_value(f"gpuslice_scheduler_{name}")


async def test_the_first_call_takes_a_free_lease_at_once() -> None:
    server, listed = Server(), []

    async def relist() -> None:
        listed.append(server.holder)

    async with client_of(server.answer) as kube, leading(kube, relist=relist) as leader:
        assert not leader.may_write()
        assert "no process holds" in leader.refusal() or "cannot be acquired" in leader.refusal()
        assert await leader.admit() == ""
        assert leader.may_write() and leader.refusal() == ""
        assert leader.writer == "a 1" and server.holder == "a"
        assert listed == ["a"]
        assert value(leader, "lease_held") == 1
        await until_async(lambda: server.methods.count("PUT") > 2)
        await ends(leader)
        assert server.holder == "" and not leader.may_write()


async def test_the_list_of_a_new_term_is_tried_until_it_succeeds() -> None:
    tries = 0

    async def relist() -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise KubeError(503, "Busy", "later")

    async with client_of(Server().answer) as kube, leading(kube, relist=relist) as leader:
        await leader.admit()
        if tries < 3:
            assert "lists all objects first" in leader.refusal()
        await admitted(leader)
        assert tries == 3


async def test_a_second_installation_stays_on_standby_and_names_the_holder(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server()
    timing = Timing(yield_s=0.1)
    async with (
        client_of(server.answer) as kube,
        leading(kube, "a", "here", timing=timing) as first,
        leading(kube, "b", "elsewhere", timing=timing) as second,
    ):
        await admitted(first)
        await until_async(lambda: "installation, here, holds" in second.status)
        begun_s = boot_clock()
        refusal = await second.admit()
        assert boot_clock() - begun_s < DEADLINE_S
        assert refusal.startswith("gpuslice does not bind here: on standby; another install")
        assert f"{names.NAMESPACE}/{names.LEASE_SCHEDULER}: a, which" in refusal
        await until_async(
            lambda: names.ANNOTATION_CANDIDATE in (server.lease or {})["metadata"]["annotations"]
        )
        await until_async(lambda: value(second, "second_installation") == 1)
        assert second.second_installation == "here"
        seen = server.methods.count("PUT")
        await until_async(lambda: server.methods.count("PUT") > seen + 2)
        assert first.may_write() and not second.may_write()
    assert any("second installation" in record.getMessage() for record in caplog.records)


async def test_a_holder_stops_when_another_process_takes_the_lease() -> None:
    server = Server()
    async with client_of(server.answer) as kube, leading(kube) as leader:
        await admitted(leader)
        assert server.lease is not None
        spec = {**server.lease["spec"], "holderIdentity": "z", "leaseTransitions": 9}
        server.lease = {"metadata": {"resourceVersion": "99"}, "spec": spec}
        await until_async(lambda: not leader.may_write())
        assert leader.role is Role.STANDBY and server.holder == "z"


async def test_a_leaving_process_finishes_pending_writes_first() -> None:
    server = Server()
    async with client_of(server.answer) as kube, leading(kube) as leader:
        await admitted(leader)
        with leader.writing():
            leader.leave()
            assert not leader.may_write() and leader.role is Role.RELEASING
            assert "releasing the Lease" in leader.refusal()
            seen = server.methods.count("PUT")
            await until_async(lambda: server.methods.count("PUT") > seen)
            assert server.holder == "a"
        await until_async(lambda: server.holder == "")


async def test_a_cancelled_write_counts_as_pending_at_the_server() -> None:
    server, clock = Server(), Clock()
    async with client_of(server.answer) as kube, leading(kube, clock=clock) as leader:
        await admitted(leader)
        with suppress(KubeError), leader.writing():
            raise KubeError(0, "NoAnswer", "")
        leader.leave()
        seen = server.methods.count("PUT")
        await until_async(lambda: server.methods.count("PUT") > seen)
        assert server.holder == "a"
        clock.ahead_s += POST_S
        await until_async(lambda: server.holder == "")


async def test_a_conflict_without_an_answer_about_it_is_a_failure() -> None:
    server, conflicts = Server(), True

    async def answer(request: web.Request) -> web.StreamResponse:
        if conflicts and request.method == "PUT":
            server.failing = 503
            return refuse(409, "Conflict")
        return await server.answer(request)

    async with client_of(answer) as kube, leading(kube) as leader:
        await leader.admit()
        await until_async(lambda: "cannot be acquired: Failing" in leader.refusal())
        server.failing = 0
        conflicts = False
        await admitted(leader)


async def test_a_lease_that_cannot_be_created_is_reported() -> None:
    """The Lease's namespace does not exist."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return refuse(404, "NotFound", "no such namespace")

    async with client_of(answer) as kube, leading(kube) as leader:
        await leader.admit()
        await until_async(lambda: "cannot be acquired: NotFound: no such name" in leader.refusal())
        labels = {"request": "acquire"}
        name = "gpuslice_scheduler_lease_failures_total"
        assert leader._metrics.registry.get_sample_value(name, labels)


async def test_a_process_that_leaves_without_the_lease_leaves_at_once() -> None:
    server = Server(failing=500)
    async with client_of(server.answer) as kube:
        leader = Leader(kube, Candidate("a", "here"), nothing, Metrics())
        running = asyncio.create_task(leader.run())
        await until_async(lambda: "cannot be acquired: Failing" in leader.refusal())
        leader.leave()
        async with asyncio.timeout(DEADLINE_S):
            await running
