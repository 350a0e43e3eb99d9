"""The writes of nominations: how many at a time, by which process, and what a refusal means."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kube.errors import KubeError
from scheduler.decisions.backlog import Backlog
from scheduler.decisions.nomination import When
from scheduler.decisions.pace import SEARCH_S
from scheduler.decisions.verbs import Verbs
from scheduler.kubernetes.waiting import waiting
from scheduler.metrics import Metrics
from scheduler.nominator import MAX_WRITES, NOMINATES, OFF_S, POLL_S, REFUSALS, Nominator
from tests.scheduler import calls, objects, virtual_time
from tests.scheduler.calls import arguments

_WRITE_S = 0.05


class Server:
    """Answers patches after _WRITE_S with `error`, if any."""

    def __init__(self) -> None:
        self.patches: list[tuple[str, Any]] = []
        self.error: KubeError | None = None
        self.at_once = self.most = 0

    async def patch(self, path: str, body: Any, *, timeout_s: float = 0.0, **how: object) -> Any:
        assert how == NOMINATES
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.patches.append((path, body))
        await asyncio.sleep(_WRITE_S)
        self.at_once -= 1
        if self.error:
            raise self.error
        return {}


class Scene:
    def __init__(self, pods: int = 60) -> None:
        loop = asyncio.get_running_loop()
        state = calls.state(nodes=4, gpus=8)
        self.metrics, self.server, self.holds_lease = Metrics(), Server(), True
        self.backlog = Backlog(state, loop.time, When.ALWAYS)
        self.verbs = Verbs(state, backlog=self.backlog)
        for number in range(pods + 1):
            self.comes(f"p{number}")
        raw = calls.pod("p0", objects.container("main", core=1, ratio=1))
        self.verbs.filter(arguments(raw, calls.names(4)))
        self.nominator = Nominator(
            self.backlog, self.server, lambda: self.holds_lease, self.metrics, loop.time
        )

    def comes(self, uid: str, namespace: str = "default") -> None:
        raw = calls.pod(uid, objects.container("main", core=1, ratio=1))
        raw["metadata"]["namespace"] = namespace
        self.backlog.observe(waiting(raw))

    def leave(self) -> None:
        """All pods."""
        for number in range(61):
            self.backlog.remove(f"p{number}")

    async def lasts(self, seconds: float) -> None:
        task = asyncio.create_task(self.nominator.run())
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.wait([task])

    def counted(self, outcome: str) -> float:
        name = "gpuslice_scheduler_nominations_total"
        return self.metrics.registry.get_sample_value(name, {"outcome": outcome}) or 0.0


def test_each_waiting_pod_gets_one_write_and_several_are_written_at_a_time() -> None:
    async def main() -> None:
        scene = Scene()
        await scene.lasts(1.0)
        paths = [path for path, _ in scene.server.patches]
        assert len(paths) == len(set(paths)) == 60
        assert scene.server.most == MAX_WRITES
        assert scene.counted("nominated") == 60
        path, body = scene.server.patches[0]
        node = body["status"]["nominatedNodeName"]
        assert path == "/api/v1/namespaces/default/pods/pod-p1/status"
        assert body == {
            "metadata": {"uid": "p1", "resourceVersion": "1"},
            "status": {"nominatedNodeName": node},
        }

    virtual_time.run(main())


def test_a_process_that_may_not_bind_writes_nothing() -> None:
    async def main() -> None:
        scene = Scene()
        scene.holds_lease = False
        await scene.lasts(1.0)
        assert scene.server.patches == []

    virtual_time.run(main())


@pytest.mark.parametrize("status", [404, 409, 500])
def test_a_pod_whose_write_fails_is_left_alone_and_the_others_are_not(status: int) -> None:
    async def main() -> None:
        scene = Scene()
        scene.server.error = KubeError(status, "Conflict", "it changed")
        await scene.lasts(1.0)
        assert len(scene.server.patches) == 60
        assert scene.counted("failed") == 60

    virtual_time.run(main())


@pytest.mark.parametrize("status", [403, 422])
def test_where_the_field_is_refused_nothing_is_written_for_a_while(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """422 is a policy's usual status. The namespace alone is left out."""

    async def main() -> None:
        scene = Scene(pods=100)
        scene.server.error = KubeError(status, "Forbidden", "a policy refuses it")
        await scene.lasts(1.0)
        assert REFUSALS <= len(scene.server.patches) <= MAX_WRITES
        assert caplog.text.count("nominations paused") == 1
        scene.server.error, before = None, len(scene.server.patches)
        scene.comes("p200")
        scene.comes("q0", "research")
        await scene.lasts(OFF_S)
        assert [path for path, _ in scene.server.patches[before:]] == [
            "/api/v1/namespaces/research/pods/pod-q0/status"
        ]
        scene.comes("p201")  # left to kube-scheduler's search, which shows the candidates again
        scene.comes("p202")
        await scene.lasts(1.0)
        assert len(scene.server.patches) == before + 2

    virtual_time.run(main())


def test_single_refusals_pause_nothing() -> None:
    """The API server refuses the nomination of a pod that was bound meanwhile."""

    async def main() -> None:
        scene = Scene(pods=0)
        for number in range(1, 40):
            failing = KubeError(422, "Invalid", "may not be set on pods that are already bound")
            scene.server.error = failing if number % REFUSALS else None
            scene.comes(f"p{number}")
            await scene.lasts(0.2)
        assert len(scene.server.patches) == 39

    virtual_time.run(main())


def test_a_binding_waits_for_the_write_of_its_pods_nomination_alone() -> None:
    async def main() -> None:
        scene = Scene(pods=1)
        clock = asyncio.get_running_loop().time
        await scene.nominator.settled("p1")
        scene.nominator.write_due()
        await asyncio.sleep(0)
        begun_s = clock()
        await scene.nominator.settled("p0")
        assert clock() == begun_s
        await scene.nominator.settled("p1")
        assert clock() == begun_s + _WRITE_S
        assert scene.server.at_once == 0

    virtual_time.run(main())


@pytest.mark.parametrize("is_received", [True, False])
def test_an_answer_is_held_back_until_nominations_are_received_or_for_a_search(
    is_received: bool,
) -> None:
    """However long the API server takes."""

    async def main() -> None:
        scene = Scene()
        loop = asyncio.get_running_loop()
        assert scene.nominator.hold() is None
        (first,) = scene.backlog.plan(1, lambda: False)
        raw = calls.pod(first.pending.uid, objects.container("main", core=1, ratio=1))
        scene.verbs.filter(arguments(raw, [str(first.node)]))
        held, began_s = scene.nominator.hold(), loop.time()
        assert held is not None
        if is_received:
            loop.call_later(SEARCH_S / 2, scene.leave)
        await held
        took_s = loop.time() - began_s
        assert took_s == pytest.approx(SEARCH_S / 2 if is_received else SEARCH_S, abs=POLL_S * 1.1)
        name = "gpuslice_scheduler_nomination_hold_seconds_total"
        assert scene.metrics.registry.get_sample_value(name) == pytest.approx(took_s)
        assert scene.server.patches, "the writes begin while the answer is held back"
        scene.leave()
        assert scene.nominator.hold() is None

    virtual_time.run(main())
