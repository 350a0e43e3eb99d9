"""Writes for pods that missed kube-scheduler's sample."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gpuslice.kube.errors import KubeError
from scheduler import requeuer
from scheduler.decisions.requeue import Unschedulable
from scheduler.decisions.sampling import Requeue, Sampling
from scheduler.kubernetes.requests import pending
from scheduler.metrics import Metrics
from tests.scheduler import calls


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SETTLE_S", "_RETRY_S"):
        monkeypatch.setattr(requeuer, name, 0)


class Kube:
    """Answers each patch with the next status; 200 once there are no more."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses)
        self.patches: list[dict[str, Any]] = []

    async def patch(self, path: str, body: dict[str, Any], *, timeout_s: float) -> None:
        assert path.endswith("/pods/pod-a/status")
        self.patches.append(body)
        if self._statuses:
            raise KubeError(self._statuses.pop(0), "", "")


class Recording(Sampling):
    def __init__(self) -> None:
        super().__init__(calls.state())
        self.failures: list[str] = []

    def failed(self, uid: str) -> None:
        self.failures.append(uid)


async def requeued(kube: Kube, *nominated: str | None) -> tuple[Recording, Metrics]:
    """The writes for one pod, after they have ended."""
    sampling, metrics, queue = Recording(), Metrics(), Unschedulable(calls.state())
    missed: asyncio.Queue[Requeue] = asyncio.Queue()
    made = requeuer.Requeuer(queue, sampling, kube, metrics, lambda: 0.0)  # type: ignore[arg-type]
    running = asyncio.create_task(made.run(missed))
    for each in nominated:
        missed.put_nowait(Requeue(pending(calls.pod("a")), each))
    for _ in range(100):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    return sampling, metrics


def count(metrics: Metrics) -> float | None:
    name = "gpuslice_scheduler_requeued_pods_total"
    return metrics.registry.get_sample_value(name, {"cause": "sample"})


@pytest.mark.parametrize(
    ("nominated", "status"),
    [("n1", {"nominatedNodeName": "n1"}), ("", {"nominatedNodeName": None}), (None, None)],
)
async def test_a_pod_gets_the_node_nominated(
    nominated: str | None, status: dict[str, Any] | None
) -> None:
    kube = Kube()
    _, metrics = await requeued(kube, nominated)
    (patch,) = kube.patches
    assert patch.get("status") == status
    assert patch["metadata"]["uid"] == "a" and len(patch["metadata"]["annotations"]) == 1
    assert count(metrics) == 1


async def test_a_write_that_fails_is_repeated() -> None:
    kube = Kube(500, 0)
    sampling, metrics = await requeued(kube, "n1")
    assert (len(kube.patches), sampling.failures, count(metrics)) == (3, [], 1)
    kube = Kube(*[500] * 9)
    sampling, metrics = await requeued(kube, "n1")
    assert (len(kube.patches), sampling.failures) == (5, ["a"])


@pytest.mark.parametrize("status", [404, 409, 422])
async def test_a_pod_that_is_gone_bound_or_replaced_is_left_alone(status: int) -> None:
    kube = Kube(status)
    sampling, _ = await requeued(kube, "n1")
    assert (len(kube.patches), sampling.failures) == (1, ["a"])
