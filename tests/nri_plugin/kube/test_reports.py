"""What the agent reports in addition to its inventory: each event once, and its Lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, cast

import pytest

from gpuslice.contract import names
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from nri_plugin.containers.parts import Parts
from nri_plugin.kube.reports import Events, Heartbeat
from nri_plugin.policy.model import Pod
from nri_plugin.policy.notices import Notice, Notices
from tests.nri_plugin.objects import parts, settings
from tests.virtual_time import loop_factory as loop_factory
from tests.virtual_time import now


def notice(number: int, text: str = "static") -> Notice:
    return Notice(Pod(f"{number}", "team", "train"), "main", "LimitNotEnforceable", text)


def test_each_notice_is_reported_once() -> None:
    """A failing driver affects every share of its node, and each round of checks finds that."""
    live = {str(number) for number in range(1000)}
    notices = Notices(lambda: live)
    assert notices.first() is None
    assert all(notices.add(notice(number)) for number in range(1000))
    for number in range(1000):
        assert not notices.add(notice(number, "static again"))
        assert notices.first() == notice(number)
        for _ in range(2):
            notices.done(notice(number))
        assert not notices.add(notice(number))
    assert notices.first() is None


def test_few_notices_of_deleted_pods_are_kept() -> None:
    live: set[str] = set()
    notices = Notices(lambda: live)
    for number in range(10_000):
        live.clear()
        live.add(str(number))
        notices.add(notice(number))
    first = notices.first()
    assert first is not None and int(first.pod.uid) > 9_500
    assert notices.add(notice(1))


class Server:
    """An API server that refuses the first patches with these statuses, one each, and accepts later
    ones. It refuses to create an object that exists."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = [*statuses]
        self.sent: list[tuple[float, str, Any]] = []
        self.made: set[str] = set()

    async def patch(self, path: str, body: Any, timeout_s: float = 0, verb: str = "patch") -> None:
        self.sent.append((now(), f"{verb} {path.rpartition('/')[2]} {timeout_s}", body))
        if self.statuses:
            raise KubeError(self.statuses.pop(0), "Refused", "")

    async def post(self, path: str, body: dict[str, Any], timeout_s: float) -> None:
        await self.patch(path, body, timeout_s, "post")
        name = body["metadata"]["name"]
        if name in self.made:
            raise KubeError(409, "Refused", "")
        self.made.add(name)


async def during(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work


@pytest.fixture
def agent() -> Parts:
    return parts(settings(node_name="node-1"))


async def test_the_event_of_another_start_is_not_written_again(agent: Parts) -> None:
    server = Server()
    for _ in range(2):
        assert await Events(cast(Kube, server), agent, lambda: "").write(notice(1))
    assert len(server.made) == 1
    assert agent.metrics.api_writes.labels("event", "failed")._value.get() == 0


async def test_what_the_server_may_accept_later_is_tried_again(agent: Parts) -> None:
    server = Server(401, 429, 500, 400)
    assert all(agent.notices.add(notice(number)) for number in range(2))
    await during(25, Events(cast(Kube, server), agent, lambda: "").run())
    assert [at_s for at_s, *_ in server.sent] == [0, 5, 10, 15, 15]


async def test_an_absent_lease_is_created(agent: Parts) -> None:
    server = Server(404)
    await Heartbeat(cast(Kube, server), agent, lambda: "uid-1").mark_stopped()
    (name,) = server.made
    assert [what for _, what, _ in server.sent] == [f"patch {name} 1.5", "post leases 1.5"]


async def test_the_lease_is_renewed_regularly_and_when_the_readiness_changes(
    agent: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    agent.readiness.session, agent.readiness.node = None, ()
    asyncio.get_running_loop().call_later(17.1, setattr, agent.readiness, "session", "x" * 501)
    server = Server(500, 500, 503)
    await during(28, Heartbeat(cast(Kube, server), agent, lambda: "uid-1").run())
    assert [at_s for at_s, *_ in server.sent] == [0, 2, 4, 6, 16, 17.25, 27.25]
    said = [lease["metadata"]["annotations"][names.ANNOTATION_READY] for *_, lease in server.sent]
    assert said == ["true"] * 5 + ["x" * 500] * 2
    first, again = caplog.messages
    assert "Lease not renewed" in first and "Lease renewed again" in again
    writes = agent.metrics.api_writes
    assert writes.labels("lease", "written")._value.get() == 4
    assert writes.labels("lease", "failed")._value.get() == 3
