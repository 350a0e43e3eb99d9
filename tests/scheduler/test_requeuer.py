"""Writes to pods that fit only on a node outside of kube-scheduler's sample."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gpuslice.kube.errors import KubeError
from scheduler import requeuer
from scheduler.decisions.requeue import Unschedulable
from scheduler.decisions.sampling import Requeue, Sampling
from scheduler.kubernetes.requests import Pending, pending
from scheduler.metrics import Metrics
from tests.scheduler import calls
from tests.virtual_time import loop_factory as loop_factory


class Recording(Sampling):
    """A `Sampling` that is also the API server. It records each patch, and refuses it with the next
    of `statuses`, if one is left."""

    def __init__(self, *statuses: int) -> None:
        super().__init__(calls.state())
        self.failures: list[str] = []
        self.patches: list[dict[str, Any]] = []
        self.metrics = Metrics()
        self._statuses = list(statuses)

    def failed(self, uid: str) -> None:
        self.failures.append(uid)

    async def patch(self, path: str, body: dict[str, Any], *, timeout_s: float) -> None:
        assert path.endswith("/pods/pod-a/status")
        self.patches.append(body)
        if self._statuses:
            raise KubeError(self._statuses.pop(0), "", "")

    @property
    def requeued(self) -> float | None:
        name = "gpuslice_scheduler_requeued_pods_total"
        return self.metrics.registry.get_sample_value(name, {"cause": "sample"})


async def writes(*statuses: int, nominated: str | None = "n1") -> Recording:
    """Requeue one pod, and return the recorded patches."""
    found, queue = Recording(*statuses), Unschedulable(calls.state())
    missed: asyncio.Queue[Requeue] = asyncio.Queue()
    kube: Any = found
    made = requeuer.Requeuer(queue, found, kube, found.metrics, lambda: 0.0)
    running = asyncio.create_task(made.run(missed))
    missed.put_nowait(Requeue(pending(calls.pod("a")), nominated))
    await asyncio.sleep(60)
    running.cancel()
    await asyncio.wait([running])
    return found


async def test_a_pod_gets_the_node_nominated() -> None:
    named, removed = {"nominatedNodeName": "n1"}, {"nominatedNodeName": None}
    for nominated, status in (("n1", named), ("", removed), (None, None)):
        found = await writes(nominated=nominated)
        (patch,) = found.patches
        assert patch.get("status") == status
        assert patch["metadata"]["uid"] == "a" and len(patch["metadata"]["annotations"]) == 1
        assert found.requeued == 1


async def test_a_write_that_fails_is_repeated() -> None:
    found = await writes(500, 0)
    assert (len(found.patches), found.failures, found.requeued) == (3, [], 1)
    found = await writes(*[500] * 9)
    assert (len(found.patches), found.failures) == (5, ["a"])


@pytest.mark.parametrize("status", [404, 409, 422])
async def test_a_pod_that_is_gone_bound_or_replaced_is_left_alone(status: int) -> None:
    found = await writes(status)
    assert (len(found.patches), found.failures) == (1, ["a"])


class Due(Unschedulable):
    """A queue in which two pods are due."""

    def __init__(self) -> None:
        super().__init__(calls.state())
        self.called: list[str] = []

    def due(self, is_over: object = None) -> list[Pending]:
        return [pending(calls.pod("a")), pending(calls.pod("a"))]

    def remove(self, uid: str) -> None:
        self.called.append("remove")

    def again(self, uid: str) -> None:
        self.called.append("again")


@pytest.mark.parametrize(
    ("status", "patches", "called"), [(500, 1, ["again", "again"]), (404, 2, ["remove"])]
)
async def test_pods_that_are_due_stay_so_after_a_failure(
    status: int, patches: int, called: list[str]
) -> None:
    kube: Any = Recording(status)
    queue = Due()
    await requeuer.Requeuer(queue, kube, kube, kube.metrics, lambda: 0.0).requeue_due()
    assert (len(kube.patches), queue.called) == (patches, called)
