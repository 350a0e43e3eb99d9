"""The figures of queues, a Queue's status, and Events about pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuslice.contract import names
from scheduler.queues import figures, kueue, status, tree
from scheduler.queues.figures import Pod, Work
from scheduler.queues.tree import Queue
from tests.queues.examples import EXAMPLES, Example
from tests.queues.kai import Q, leaves

Json = dict[str, Any]
CAPACITY = 10_000
QUEUES = (
    *(Q("dept", 4, 5), Q("team", 2, parent="dept"), Q("capped", 1, 2, parent="dept")),
    *(Q("frugal", 1, weight=0), Q("lost", parent="gone"), Q("tiny", 0, 0.5)),
)
LOCAL = {("ns", name): name for name in ("dept", "team", "capped", "frugal", "lost")} | {
    ("ns", "own"): "theirs"
}
WAITS = Pod("u1", "ns", "p", "team", names.LABEL_KAI_QUEUE, 1000, True, False)


def container(milli: object) -> Json:
    return {"resources": {"requests": {names.RESOURCE_MILLI: milli}}}


SIDECAR = {**container("200"), "restartPolicy": "Always"}


def counted(
    *works: Work,
    pods: tuple[Pod, ...] = (),
    age_s: float = 100.0,
    capacity: int = CAPACITY,
    queues: tuple[Q, ...] = QUEUES,
) -> tree.Queues:
    built = tree.build(each.raw() for each in queues)
    kueue.divide(built, capacity)
    figures.count(built, works, pods, LOCAL, {each.uid: age_s for each in pods}, {})
    return built


def event_of(each: Pod, *works: Work, age_s: float = 100.0) -> list[tuple[str, str]]:
    found = counted(*works, pods=(each,), age_s=age_s)
    made = status.events(found, [each], LOCAL, {each.uid: age_s}, {})
    return [(reason, text) for reason, *_, text in made]


# --- reading


@pytest.mark.parametrize(
    ("spec", "milli"),
    [
        ({"containers": [container("86"), container("1k")]}, 1086),
        ({"containers": [container("300")], "initContainers": [container("500")]}, 500),
        ({"containers": [container("300")], "initContainers": [SIDECAR, container("500")]}, 700),
        ({"containers": [container("300")], "initContainers": [container("500"), SIDECAR]}, 500),
        ({"containers": [container("300")], "initContainers": [container("400"), SIDECAR]}, 500),
        ({"containers": [{"resources": {}}, {}]}, 0),
        ({"containers": [container("nonsense")]}, 0),
        ({}, 0),
    ],
)
def test_a_pods_request_is_read_from_its_containers(spec: Json, milli: int) -> None:
    assert figures.milli_of(spec) == milli


def workload(*conditions: str, count: int = 1) -> Json:
    template = {"spec": {"containers": [container("250")]}}
    return {
        "metadata": {"namespace": "ns", "name": "w"},
        "spec": {"queueName": "team", "podSets": [{"count": count, "template": template}]},
        "status": {"conditions": [{"type": each, "status": "True"} for each in conditions]},
    }


def admitted(count: int, ended: int = 0) -> Json:
    usage = {names.RESOURCE_MILLI: str(250 * count)}
    raw = workload("Admitted", count=20)
    raw["status"]["admission"] = {
        "podSetAssignments": [{"name": "main", "count": count, "resourceUsage": usage}]
    }
    raw["status"]["reclaimablePods"] = [{"name": "main", "count": ended}]
    return raw


@pytest.mark.parametrize(("count", "ended", "milli"), [(20, 0, 5000), (2, 0, 500), (4, 3, 250)])
def test_a_job_counts_as_kueue_admitted_it(count: int, ended: int, milli: int) -> None:
    assert figures.work(admitted(count, ended)) == Work("ns", "team", milli, True)


def test_where_no_limit_is_in_the_way_a_pod_is_told_what_kueue_says() -> None:
    found = counted(pods=(WAITS,))
    ((_, _, text),) = status.events(found, [WAITS], LOCAL, {"u1": 9.0}, {"u1": "cpu unavailable"})
    assert text.endswith("all queues use 0 of 10 GPUs; cpu unavailable")


def test_a_workload_counts_until_it_has_finished() -> None:
    assert figures.work(workload(count=3)) == Work("ns", "team", 750, False)
    assert figures.work(admitted(1)) == Work("ns", "team", 250, True)
    assert figures.work(workload("Admitted", "Finished")) is None


def test_a_pod_is_read_until_it_ends() -> None:
    raw: Json = {
        "metadata": {
            **{"uid": "u", "namespace": "ns", "name": "p"},
            "labels": {names.LABEL_KUEUE_QUEUE: "team", names.LABEL_RUNAI_QUEUE: "team"},
        },
        "spec": {"schedulingGates": [{"name": figures.GATE}], "containers": [container(1000)]},
    }
    read = figures.pod(raw)
    assert read == Pod("u", "ns", "p", "team", names.LABEL_RUNAI_QUEUE, 1000, True, False)
    assert figures.pod({**raw, "status": {"phase": "Succeeded"}}) is None
    raw["metadata"]["deletionTimestamp"] = "now"
    assert figures.pod(raw) is None


# --- use


def test_use_is_summed_to_the_top() -> None:
    found = counted(
        *(Work("ns", "team", 300, True), Work("ns", "team", 500, False)),
        *(Work("ns", "capped", 1000, True), Work("ns", "own", 9000, True)),
        *(Work("ns", "dept", 5000, True), Work("ns", "lost", 5000, True)),
    )
    used = {name: (each.used, each.wanted, each.waiting) for name, each in found.items()}
    assert used == {
        **{"": (1300, 1800, 1), "dept": (1300, 1800, 1), "team": (300, 800, 1)},
        **{"capped": (1000, 1000, 0), "frugal": (0, 0, 0), "lost": (0, 0, 0)},
        "tiny": (0, 0, 0),
    }


def test_pods_that_cannot_be_placed_are_counted_after_a_minute() -> None:
    admitted = replace(WAITS, is_gated=False)
    assert counted(pods=(admitted,), age_s=60.0)["dept"].unplaceable == 1
    assert counted(pods=(admitted,), age_s=59.0)["dept"].unplaceable == 0
    assert counted(pods=(replace(admitted, is_bound=True),))["dept"].unplaceable == 0
    assert counted(pods=(WAITS,))["dept"].unplaceable == 0


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.title)
def test_a_share_is_what_runs_in_each_example(example: Example) -> None:
    """The share is in GPUs and not in whole pods, so it differs by less than one."""
    queues = tree.build(each.raw() for each in example.queues)
    kueue.divide(queues, example.gpus * tree.MILLI)
    demand = example.demands[-1]
    works = [Work("ns", name, 1000, False) for name, count in demand.items() for _ in range(count)]
    local = {("ns", each.name): each.name for each in leaves(example.queues)}
    figures.count(queues, works, (), local, {}, {})
    shares = {name: queues[name].share / tree.MILLI for name in example.runs}
    for name, runs in example.runs.items():
        assert abs(shares[name] - runs) < 1, (name, shares)
    assert sum(shares.values()) == pytest.approx(sum(example.runs.values()), abs=0.01)


# --- the Queue's status


def condition(name: str, *pods: Pod, problem: Any = None, capacity: int = CAPACITY) -> Json:
    found = counted(pods=pods, capacity=capacity)
    after = status.status({}, found[name], problem, capacity, "1")
    assert after is not None
    (made,) = after["conditions"]
    return dict(made)


def test_the_condition_says_why_a_queue_is_not_served() -> None:
    assert condition("team") == {
        **{"type": "Ready", "status": "True", "reason": "Served", "lastTransitionTime": "1"},
        "message": "Kueue serves the queue",
    }
    lost = condition("lost")
    assert (lost["status"], lost["reason"]) == ("False", "ParentMissing")
    inner = condition("dept", replace(WAITS, queue="dept"))
    assert (inner["status"], inner["reason"]) == ("True", "PodsInInnerQueue")
    assert inner["message"].endswith("starts no pods, but 1 name it: ns/p")
    scaled = condition("dept", capacity=1000)
    assert scaled["reason"] == "QuotaScaled"
    assert "4 does not fit the parent or the cluster: 0.8 is guaranteed" in scaled["message"]


def test_the_status_is_written_only_where_it_differs() -> None:
    def after(raw: Json, milli: int, now: str) -> Any:
        queue = counted(Work("ns", "team", milli, True), Work("ns", "team", 86, False))["dept"]
        return status.status(raw, queue, None, CAPACITY, now)

    first = after({}, 1300, "1")
    assert first is not None
    assert first["allocated"] == {"nvidia.com/gpu": "1300m"}
    assert first["requested"] == {"nvidia.com/gpu": "1386m"}
    assert first["childQueues"] == ["capped", "team"]
    assert after({"status": first}, 1300, "2") is None
    changed = after({"status": first}, 2000, "2")
    assert changed is not None
    assert changed["allocated"] == {"nvidia.com/gpu": "2"}
    assert changed["conditions"][0]["lastTransitionTime"] == "1"


def test_the_figures_can_be_read_back() -> None:
    found = counted(Work("ns", "team", 300, True), Work("ns", "capped", 2500, False))
    raws = [each.raw() for each in QUEUES]
    for raw in raws:
        queue = found[raw["metadata"]["name"]]
        raw["status"] = status.status(raw, queue, None, CAPACITY, "1")
    raws.append(Q("new").raw())
    read = figures.restore(raws)
    assert (read[""].guaranteed, read[""].used, read[""].waiting) == (CAPACITY, 300, 1)
    for name in ("dept", "team", "capped", "frugal"):
        for key in ("guaranteed", "most", "used", "wanted", "waiting", "unplaceable"):
            assert getattr(read[name], key) == getattr(found[name], key), (name, key)
        assert read[name].share == round(found[name].share)
    assert [name for name, each in read.items() if each.fault] == ["lost", "new"]


def test_conditions_of_others_stay() -> None:
    theirs = {"type": "Other", "status": "True"}
    raw: Json = {"status": {"conditions": [theirs], "allocated": {"cpu": "1"}}}
    after = status.status(raw, Queue("a"), tree.Finding("Problem", "all"), CAPACITY, "1")
    assert after is not None
    assert after.keys() == {"conditions"}
    assert [each["type"] for each in after["conditions"]] == ["Other", "Ready"]


# --- Events


@pytest.mark.parametrize(
    ("queue", "works", "part"),
    [
        ("tiny", [], "this is more than tiny's limit of 0.5 GPUs"),
        ("capped", [("capped", 1500)], "capped's limit is 2 GPUs, and 1.5 in use"),
        ("team", [("team", 4500)], "dept's limit is 5 GPUs, and 4.5 in use"),
        ("team", [("capped", 4200)], "dept's limit is 5 GPUs, and 4.2 in use"),
        (
            "frugal",
            [("frugal", 700)],
            "frugal's quota, with overQuotaWeight 0, is 1 GPU, and 0.7 in use",
        ),
        (
            "team",
            [("team", 1000), ("frugal", 900)],
            "team uses 1 of its quota of 2, and all queues use 1.9 of 10 GPUs",
        ),
    ],
)
def test_a_waiting_pod_is_told_queue_limit_and_use(
    queue: str, works: list[tuple[str, int]], part: str
) -> None:
    ((reason, text),) = event_of(
        replace(WAITS, queue=queue), *(Work("ns", name, milli, True) for name, milli in works)
    )
    assert reason == names.EVENT_QUEUE_WAITING
    assert text == f"waits in queue {queue} and requests 1 GPU; {part}"


@pytest.mark.parametrize(
    ("queue", "must"),
    [
        ("none", "the name of a Queue; there is none of this name"),
        ("dept", "a Queue without children; it has capped, team"),
        ("lost", "a Queue that is served; spec.parentQueue: invalid value gone: must be the name"),
    ],
)
def test_a_pod_in_a_queue_that_runs_none_is_told(queue: str, must: str) -> None:
    ((reason, text),) = event_of(replace(WAITS, queue=queue))
    assert reason == names.EVENT_QUEUE_UNSERVED
    assert text.startswith(
        f"metadata.labels[kai.scheduler/queue]: invalid value {queue}: must be {must}"
    )


def test_a_pod_that_no_gpu_has_room_for_is_told() -> None:
    ((reason, text),) = event_of(replace(WAITS, is_gated=False, milli=800))
    assert reason == names.EVENT_QUEUE_UNPLACEABLE
    assert "queue team" in text
    assert "do not add up to 0.8 GPUs" in text


@pytest.mark.parametrize("changed", [{"queue": "own"}, {"is_gated": False, "is_bound": True}])
def test_no_event_about_other_pods(changed: Any) -> None:
    assert event_of(replace(WAITS, **changed)) == []
    assert event_of(WAITS, age_s=2.0) == []
