"""Events of problems: their content, their rate, and failed writes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuslice.kube.errors import KubeError
from scheduler.events import AGAIN_S, BURST, PER_S, Events, event
from scheduler.kubernetes.facts import Problem
from scheduler.kubernetes.requests import pending
from scheduler.metrics import Metrics

BROKEN = Problem("n1", "", "a GPU is gone")


class Scene:
    """An API server that accepts all Events, or refuses them."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.refuses = False
        self.written: list[tuple[str, Any]] = []
        self.metrics = Metrics()
        self.clock_reads = 0
        self.events = Events(self.post, self.metrics, self.clock, "me")

    def clock(self) -> float:
        self.clock_reads += 1
        return self.now_s

    async def post(self, path: str, body: Any, *, timeout_s: float = 0) -> Any:
        if self.refuses:
            raise KubeError(403, "Forbidden", "no")
        self.written.append((path, body))

    def report(self, *problems: Problem) -> int:
        """Report these problems, and return the number of Events that are written."""
        seen = len(self.written)
        asyncio.run(self.events.problems(problems))
        return len(self.written) - seen

    def count(self, outcome: str) -> float | None:
        labels = {"outcome": outcome}
        return self.metrics.registry.get_sample_value("gpuslice_scheduler_events_total", labels)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_an_event_is_of_the_pod_the_node_or_the_lease(scene: Scene) -> None:
    noticed = replace(pending({"metadata": {"uid": "u-2", "namespace": "n"}}), notices=["mps: no"])
    scene.report(Problem("n1", "team/train", "unreadable", "u-1"), BROKEN)
    asyncio.run(scene.events.notices([noticed]))
    for _ in range(2):
        asyncio.run(scene.events.second_installation("on standby"))
    fields = [(body["reason"], body["type"], body["note"]) for _, body in scene.written]
    assert fields == [
        ("GPUShareUnclear", "Warning", "unreadable"),
        ("GPUInventoryProblem", "Warning", "a GPU is gone"),
        ("GPUShareNotice", "Normal", "mps: no"),
        ("SecondInstallation", "Warning", "on standby"),
    ]
    namespaces = ("team", "default", "n", "gpuslice-system")
    in_api = "/apis/events.k8s.io/v1/namespaces"
    assert [path for path, _ in scene.written] == [f"{in_api}/{each}/events" for each in namespaces]
    train, *others = [body["regarding"] for _, body in scene.written]
    of_train = {"apiVersion": "v1", "kind": "Pod", "name": "train", "namespace": "team"}
    assert train == of_train | {"uid": "u-1"}
    kinds = [("Node", "n1"), ("Pod", "u-2"), ("Lease", "")]
    assert [(each["kind"], each["uid"]) for each in others] == kinds
    assert scene.count("written") == 4


def test_the_same_problem_is_reported_once_an_hour(scene: Scene) -> None:
    assert [scene.report(BROKEN), scene.report(BROKEN)] == [1, 0]
    scene.now_s += AGAIN_S
    assert scene.report(BROKEN) == 1


def test_there_are_never_more_than_the_bucket_gives(scene: Scene) -> None:
    many = [Problem(f"n{n}", "", "broken") for n in range(40)]
    assert (scene.report(*many), scene.count("dropped")) == (25, 15)
    scene.now_s += 10 / PER_S
    assert scene.report(*many) == 10


def test_an_event_that_the_server_refuses_is_counted_and_dropped(scene: Scene) -> None:
    scene.refuses = True
    assert (scene.report(BROKEN), scene.count("failed")) == (0, 1)


def test_a_tenants_text_is_cut_and_printable() -> None:
    regarding = ("v1", "Pod", "a", "b", "")
    for size, cut in ((1010, "x"), (1011, "...")):
        text = "\x1b[31m\u202e" + "x" * size
        made = event("R", regarding, text, "m" * 253, datetime.now(UTC))
        assert (len(made["note"]), len(made["reportingInstance"])) == (1024, 128)
        assert made["note"].startswith("\\x1b[31m\\u202e") and made["note"].endswith(cut)


def test_of_many_problems_those_never_reported_come_first(scene: Scene) -> None:
    problems = [Problem(f"n{number}", "", "a GPU is gone") for number in range(BURST + 5)]
    assert scene.report(*problems) == BURST
    scene.now_s += AGAIN_S
    scene.report(*problems)
    fields = [body["regarding"]["name"] for _, body in scene.written]
    assert set(fields[: BURST + 5]) == {each.node for each in problems}


def test_the_notices_of_many_pods_at_once_are_all_written(scene: Scene) -> None:
    pods = [pending({"metadata": {"uid": f"u-{number}"}}) for number in range(BURST + 5)]
    noticed = [replace(each, notices=["mps: no"]) for each in pods]
    asyncio.run(scene.events.notices(noticed))
    assert len(scene.written) == BURST
    for _ in range(2):
        scene.now_s += 5 / PER_S
        asyncio.run(scene.events.notices([]))
    written = [body["regarding"]["uid"] for _, body in scene.written]
    assert sorted(written) == sorted(each.uid for each in noticed)


def test_an_empty_bucket_ends_the_work_on_thousands_of_problems(scene: Scene) -> None:
    problems = [Problem(f"n{number}", "", "a GPU is gone") for number in range(5_000)]
    scene.report(*problems)
    scene.clock_reads = 0
    assert scene.report(*problems) == 0
    assert scene.clock_reads <= 2
