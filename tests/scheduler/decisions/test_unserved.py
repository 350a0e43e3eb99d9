"""Pods that request a share and that no scheduler serves."""

from __future__ import annotations

from typing import Any

import pytest

from gpuslice.contract.dialects import HAMI, KAI, KOORDINATOR, VOLCANO
from scheduler.decisions.unserved import AFTER_S, Unserved
from tests.requests.pods import HALF, asking, container, of_kai, of_volcano, pod

GPU, GPUMEM = HAMI.resources[0], HAMI.resources[2]
OF_HAMI = pod(asking({GPU: 1, GPUMEM: 3000}), scheduler=HAMI.scheduler_name)
TRIED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
GATED = {**TRIED, "reason": "SchedulingGated"}


def found(raw: dict[str, Any], after_s: float = AFTER_S) -> list[str]:
    """Return the texts for the pod this long after its first observation."""
    now_s = [5.0]
    unserved = Unserved((KOORDINATOR.scheduler_name,), lambda: now_s[0])
    unserved.observe("u", raw)
    now_s[0] += after_s
    unserved.observe("u", raw)
    return [each.text for each in unserved.problems()]


@pytest.mark.parametrize(
    ("raw", "way"),
    [
        (OF_HAMI, "; to serve it set dialects.hami.enabled to true in gpuslice's chart"),
        (
            pod(asking({GPU: 1}), scheduler=HAMI.scheduler_name),
            "; to serve it set dialects.hami.enabled to true in gpuslice's chart",
        ),
        (
            of_volcano(asking({VOLCANO.resources[0]: 1024})),
            "; to serve it set dialects.volcano.enabled to true in gpuslice's chart",
        ),
        (
            of_kai({"gpu-fraction": "0.5"}),
            "; to serve it set global.gpuSharing to true in gpuslice's chart",
        ),
        (
            of_kai({"gpu-fraction": "2"}),  # refused where it is served
            "; to serve it set global.gpuSharing to true in gpuslice's chart",
        ),
        (
            pod(asking(HALF), scheduler="koord-scheduler"),
            "; to serve it add it to schedulerNames in gpuslice's chart",
        ),
        (pod(asking(HALF), scheduler="other"), ""),
    ],
)
def test_a_pod_that_no_scheduler_serves_gets_a_text_after_a_minute(
    raw: dict[str, Any], way: str
) -> None:
    assert found(raw, AFTER_S - 1) == []
    assert found(raw) == [
        f"spec.schedulerName: invalid value {raw['spec']['schedulerName']}: must be a name that a"
        " scheduler serves, but none has tried the pod; gpuslice serves gpuslice-scheduler" + way
    ]


@pytest.mark.parametrize(
    "raw",
    [
        pod(asking(HALF)),
        pod(asking({GPUMEM: 3000}), scheduler="default-scheduler"),
        pod(container(), scheduler=KAI.scheduler_name),
        pod(asking({GPU: 1}), scheduler="other"),
        pod(container(), scheduler="other", annotations={"gpu-memory": "16Gi"}),
        {**OF_HAMI, "status": {"conditions": [TRIED]}},
        {**OF_HAMI, "spec": {**OF_HAMI["spec"], "schedulingGates": [{"name": "a"}]}},
    ],
)
def test_other_pods_get_none(raw: dict[str, Any]) -> None:
    assert found(raw) == []


def test_a_gate_that_is_gone_is_no_scheduler_and_a_try_or_an_end_removes_the_text() -> None:
    now_s = [0.0]
    unserved = Unserved((), lambda: now_s[0])
    for uid in ("a", "b"):
        unserved.observe(uid, {**OF_HAMI, "status": {"conditions": [GATED]}})
    now_s[0] = AFTER_S
    (one, _) = unserved.problems()
    assert (one.about, one.uid) == ("/p", "a")
    unserved.observe("a", {**OF_HAMI, "status": {"conditions": [TRIED]}})
    unserved.remove("b")
    assert unserved.problems() == []
