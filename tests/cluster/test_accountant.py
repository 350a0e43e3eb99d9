"""The storms' judge sees what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.accountant import books

GiB = 2**30
DEVICES = [
    {
        "metadata": {"name": node},
        "spec": {
            "devices": [
                {
                    "id": f"GPU-{node}-{minor}",
                    "minor": minor,
                    "resources": {"koordinator.sh/gpu-memory": "80Gi"},
                }
                for minor in (0, 1)
            ]
        },
    }
    for node in ("n1", "n2")
]


def pod(uid: str, percent: int, node: str = "", *minors: int, **changed: Any) -> dict[str, Any]:
    """minors: the cards that it was given; changed: of its grants."""
    asked = {
        "koordinator.sh/gpu.shared": str(len(minors) or 1),
        "koordinator.sh/gpu-core": str(percent * (len(minors) or 1)),
        "koordinator.sh/gpu-memory-ratio": str(percent * (len(minors) or 1)),
    }
    made: dict[str, Any] = {
        "metadata": {"namespace": "storm", "name": uid, "uid": uid},
        "spec": {"containers": [{"name": "main", "resources": {"requests": asked}}]},
        "status": {"phase": "Pending"},
    }
    if node:
        made["spec"]["nodeName"] = node
        size = 80 * GiB * percent // 100
        shares = [
            {"id": f"GPU-{node}-{m}", "minor": m, "memory": size, "core": percent} | changed
            for m in minors
        ]
        resources = {"koordinator.sh/gpu-memory": str(size), "koordinator.sh/gpu-core": percent}
        entries = [{"id": s["id"], "minor": s["minor"], "resources": resources} for s in shares]
        made["metadata"]["annotations"] = {
            "gpuslice.io/grants": json.dumps({"v": 1, "containers": {"main": shares}}),
            "scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": entries}),
        }
    return made


def test_what_adds_up_is_not_wrong() -> None:
    made = books([pod("a", 50, "n1", 0), pod("b", 50, "n1", 0), pod("c", 60, "n2", 1)], DEVICES)
    assert made.wrong == []
    assert made.cards["GPU-n1-0"].held_bytes == 80 * GiB
    assert made.bound == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("pods", "text"),
    [
        ([pod("a", 60, "n1", 0), pod("b", 50, "n1", 0)], "n1, minor 0: "),
        ([pod("a", 60, "n1", 0, memory=1)], "asked"),
        ([pod("a", 60, "n1", 0, id="GPU-n2-0")], "no card of its node"),
        ([pod("a", 60, "n1", 0, minor=1)], "no card of its node"),
        ([pod("a", 60, "n1", 0, core=61)], "asked"),
        ([pod("a", 60, "n1", 0) | {"status": {"phase": "Running"}}, pod("b", 60, "n1", 0)], "n1"),
    ],
)
def test_what_does_not_is_told(pods: list[dict[str, Any]], text: str) -> None:
    assert any(text in line for line in books(pods, DEVICES).wrong)


def test_a_pod_that_is_bound_without_grants_is_wrong() -> None:
    bare = pod("a", 60, "n1", 0)
    del bare["metadata"]["annotations"]
    assert books([bare], DEVICES).wrong == ["storm/a: is bound without 'gpuslice.io/grants'"]


def test_of_those_that_wait_it_knows_which_fit() -> None:
    full = [pod(f"full-{m}", 100, "n1", m) for m in (0, 1)]
    almost = [pod("a", 60, "n2", 0), pod("b", 80, "n2", 1)]
    waiting = [pod("c", 40), pod("d", 41), pod("e", 20, "", 0, 1), pod("f", 21, "", 0, 1)]
    for each in waiting[2:]:
        each["spec"].pop("nodeName", None)
    assert books([*full, *almost, *waiting], DEVICES).fitting == {"c", "e"}


def test_one_that_has_ended_holds_nothing() -> None:
    ended = pod("a", 60, "n1", 0) | {"status": {"phase": "Succeeded"}}
    assert books([ended], DEVICES).cards["GPU-n1-0"].held_bytes == 0
