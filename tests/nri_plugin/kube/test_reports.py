"""What the agent reports to the API server beside its inventory: events, each written once, and its
Lease, whose failures are logged once."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from nri_plugin.containers.parts import Parts
from nri_plugin.kube.reports import STOPPED, Events, Heartbeat
from nri_plugin.metrics import Metrics
from nri_plugin.policy.model import Pod
from nri_plugin.policy.notices import Notice, Notices
from nri_plugin.readiness import Readiness
from tests.nri_plugin.objects import parts, settings
from tests.support import Clock

# --- pending events: once for each container, and bounded


def notice(number: int, text: str = "static") -> Notice:
    return Notice(Pod(f"{number}", "team", "train"), "main", "LimitNotEnforceable", text)


def test_a_restarted_container_is_reported_once() -> None:
    notices = Notices()
    assert notices.first() is None
    assert notices.add(notice(1))
    assert not notices.add(notice(1, "static again"))
    notices.add(notice(2))
    assert notices.first() == notice(1)
    notices.done(notice(1))
    assert notices.first() == notice(2)
    notices.done(notice(2))
    notices.done(notice(2))
    notices.add(notice(1))
    assert notices.first() is None


def test_each_notice_is_reported_once() -> None:
    """A failing driver affects every share of its node, and is found in every round."""
    live = {str(number) for number in range(1000)}
    notices = Notices(lambda: live)
    assert all(notices.add(notice(number)) for number in range(1000))
    for _ in range(3):
        assert not any(notices.add(notice(number)) for number in range(1000))
    reported = 0
    while (found := notices.first()) is not None:
        notices.done(found)
        reported += 1
    assert reported == 1000


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


# --- their writes


NOTICE = Notice(Pod("u-1", "team", "train"), "main", "GrantRefused", "full")


class Names:
    """Has each name once. refuses: the status of every other answer."""

    def __init__(self, refuses: int = 0) -> None:
        self.names: list[str] = []
        self._refuses = refuses

    async def post(self, path: str, body: Any, *, timeout_s: float) -> None:
        name = body["metadata"]["name"]
        if status := self._refuses or 409 * (name in self.names):
            raise KubeError(status, "Refused", "")
        self.names.append(name)


async def test_the_event_of_another_start_is_not_written_again() -> None:
    server, agent = Names(), parts(settings(node_name="n1"))
    failed = agent.metrics.api_writes.labels("event", "failed")
    for _ in range(2):
        assert await Events(server, agent, lambda: "").write(NOTICE)  # type: ignore[arg-type]
    assert len(server.names) == 1
    assert failed._value.get() == 0


@pytest.mark.parametrize(("status", "is_done"), [(403, True), (429, False), (503, False)])
async def test_what_the_server_may_accept_later_is_tried_again(status: int, is_done: bool) -> None:
    events = Events(Names(status), parts(settings()), lambda: "")  # type: ignore[arg-type]
    assert await events.write(NOTICE) is is_done


# --- the Lease


class Leases:
    """Refuses with each status in turn; then accepts."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = [*statuses]
        self.calls: list[str] = []

    async def patch(self, path: str, lease: dict[str, Any], timeout_s: float) -> None:
        self.calls.append(f"patch {path.rpartition('/')[2]} {timeout_s}")
        if self.statuses:
            raise KubeError(self.statuses.pop(0), "Refused", "")

    async def post(self, path: str, lease: dict[str, Any], timeout_s: float) -> None:
        self.calls.append(f"post {path.rpartition('/')[2]} {lease['metadata']['name']}")


def _heartbeat(server: Leases, metrics: Metrics) -> Heartbeat:
    settings, readiness = SimpleNamespace(node_name="node-1"), Readiness(Clock())
    parts = SimpleNamespace(settings=settings, readiness=readiness, metrics=metrics)
    return Heartbeat(cast(Kube, server), cast(Parts, parts), lambda: "uid-1")


async def test_an_absent_lease_is_created() -> None:
    server = Leases(404)
    await _heartbeat(server, Metrics()).mark_stopped()
    name = server.calls[0].split()[1]
    assert server.calls == [f"patch {name} 1.5", f"post leases {name}"]


async def test_a_failure_and_its_end_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    server, metrics = Leases(500, 500, 503), Metrics()
    heartbeat = _heartbeat(server, metrics)
    for _ in range(5):
        await heartbeat._write(STOPPED, 5.0)
    assert not [call for call in server.calls if call.startswith("post")]
    messages = [record.getMessage() for record in caplog.records]
    assert len([each for each in messages if "Lease not renewed" in each]) == 1
    assert len([each for each in messages if "Lease renewed again" in each]) == 1
    writes = {
        outcome: metrics.registry.get_sample_value(
            "gpuslice_api_writes_total", {"object": "lease", "outcome": outcome}
        )
        for outcome in ("written", "failed")
    }
    assert writes == {"written": 2, "failed": 3}
