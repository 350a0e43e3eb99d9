"""The agent's Lease: created where it is absent, and each failure is logged once."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from nri_plugin.containers.parts import Parts
from nri_plugin.kube.heartbeat import STOPPED, Heartbeat
from nri_plugin.metrics import Metrics
from nri_plugin.readiness import Readiness
from tests.support import Clock


class Server:
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


def _heartbeat(server: Server, metrics: Metrics) -> Heartbeat:
    settings, readiness = SimpleNamespace(node_name="node-1"), Readiness(Clock())
    parts = SimpleNamespace(settings=settings, readiness=readiness, metrics=metrics)
    return Heartbeat(cast(Kube, server), cast(Parts, parts), lambda: "uid-1")


async def test_an_absent_lease_is_created() -> None:
    server = Server(404)
    await _heartbeat(server, Metrics()).mark_stopped()
    name = server.calls[0].split()[1]
    assert server.calls == [f"patch {name} 1.5", f"post leases {name}"]


async def test_a_failure_and_its_end_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    server, metrics = Server(500, 500, 503), Metrics()
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
