"""Events: an agent that was killed before it noted its write does not write a second one."""

from __future__ import annotations

from typing import Any

import pytest

from gpuslice.kube.errors import KubeError
from nri_plugin.kube.events import Events
from nri_plugin.policy.model import Pod
from nri_plugin.policy.notices import Notice
from tests.nri_plugin.objects import parts, settings

NOTICE = Notice(Pod("u-1", "team", "train"), "main", "GrantRefused", "full")


class Server:
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
    server, agent = Server(), parts(settings(node_name="n1"))
    failed = agent.metrics.api_writes.labels("event", "failed")
    for _ in range(2):
        assert await Events(server, agent, lambda: "").write(NOTICE)  # type: ignore[arg-type]
    assert len(server.names) == 1
    assert failed._value.get() == 0


@pytest.mark.parametrize(("status", "is_done"), [(403, True), (429, False), (503, False)])
async def test_what_the_server_may_accept_later_is_tried_again(status: int, is_done: bool) -> None:
    events = Events(Server(status), parts(settings()), lambda: "")  # type: ignore[arg-type]
    assert await events.write(NOTICE) is is_done
