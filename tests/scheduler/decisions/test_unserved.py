"""Pods that request a share and that no scheduler serves."""

from __future__ import annotations

from typing import Any

import pytest

from gpuslice.contract.dialects import KAI, KOORDINATOR, VOLCANO
from scheduler.decisions.unserved import AFTER_S, Unserved
from tests.requests.pods import HALF, asking, container, of_kai, of_volcano, pod
from tests.requests.row import Row, identity
from tests.requests.unserved_rows import GPU, GPUMEM, OF_HAMI, TRIED, UNSERVED

GATED = {**TRIED, "reason": "SchedulingGated"}


def found(raw: dict[str, Any], after_s: float = AFTER_S) -> list[str]:
    """Return the texts for the pod this long after its first observation."""
    now_s = [5.0]
    unserved = Unserved((KOORDINATOR.scheduler_name,), lambda: now_s[0])
    unserved.observe("u", raw)
    now_s[0] += after_s
    unserved.observe("u", raw)
    return [each.text for each in unserved.problems()]


@pytest.mark.parametrize("row", UNSERVED, ids=identity)
def test_a_pod_that_no_scheduler_serves_gets_a_text_after_a_minute(row: Row) -> None:
    assert found(row.pod, AFTER_S - 1) == []
    assert found(row.pod) == [row.says]


@pytest.mark.parametrize(
    "raw",
    [
        pod(asking(HALF)),
        pod(asking({GPUMEM: 3000}), scheduler="default-scheduler"),
        pod(container(), scheduler=KAI.scheduler_name),
        pod(asking({GPU: 1}), scheduler="other"),
        pod(container(), scheduler="other", annotations={"gpu-memory": "16Gi"}),
        {**pod(asking(HALF), scheduler="other"), "status": {"conditions": [TRIED]}},
        {**OF_HAMI, "spec": {**OF_HAMI["spec"], "schedulingGates": [{"name": "a"}]}},
    ],
)
def test_other_pods_get_none(raw: dict[str, Any]) -> None:
    assert found(raw) == []


def of_a_scheduler(image: str = "none", **metadata: Any) -> dict[str, Any]:
    return pod(container(image=image), scheduler="default-scheduler", **metadata)


@pytest.mark.parametrize(
    ("raw", "other"),
    [
        (OF_HAMI, of_a_scheduler(labels={"app": "hami-scheduler"})),
        (of_kai({"gpu-memory": "2000"}), of_a_scheduler("r:5/kai-scheduler/scheduler:v1@sha256:0")),
        (of_volcano(asking({VOLCANO.resources[0]: 1024})), of_a_scheduler("vc-scheduler")),
        (pod(asking(HALF), scheduler="koord-scheduler"), of_a_scheduler("a/b/koord-scheduler:1")),
    ],
)
@pytest.mark.parametrize("status", [{"conditions": [TRIED]}, {}], ids=["tried", "not tried"])
def test_a_pod_of_another_scheduler_gets_a_text_a_minute_after_its_end(
    raw: dict[str, Any], other: dict[str, Any], status: dict[str, Any]
) -> None:
    """Volcano's sets no condition while a group of pods waits."""
    now_s = [0.0]
    unserved = Unserved((), lambda: now_s[0])
    unserved.observe("u", {**raw, "status": status})
    unserved.observe("o", other)
    now_s[0] = 900.0
    unserved.observe("v", raw)
    unserved.observe("v", {**raw, "status": {"conditions": [TRIED]}})  # so it seemed to live on
    unserved.remove("v")
    now_s[0] = 1000.0
    assert unserved.problems() == []
    unserved.remove("o")
    now_s[0] += AFTER_S - 1
    assert unserved.problems() == []
    now_s[0] += 1
    assert [each.uid for each in unserved.problems()] == ["u"]


@pytest.mark.parametrize("change", [{"status": {"conditions": [TRIED]}}, {"nodeName": "n"}])
def test_a_scheduler_that_tries_or_binds_another_pod_is_alive(change: dict[str, Any]) -> None:
    """Not in the first minute, in which the process that served the name may still run."""
    changed = {**OF_HAMI, **change, "spec": {**OF_HAMI["spec"], **change}}
    now_s = [0.0]
    unserved = Unserved((), lambda: now_s[0])
    unserved.observe("u", {**OF_HAMI, "status": {"conditions": [TRIED]}})
    for at_s, found in ((AFTER_S - 1, ["u"]), (AFTER_S, [])):
        now_s[0] = at_s
        unserved.observe("v", OF_HAMI)
        unserved.observe("v", changed)
        unserved.remove("v")
        now_s[0] = 1000.0
        assert [each.uid for each in unserved.problems()] == found


def test_a_gate_that_is_gone_is_no_scheduler_and_a_try_removes_the_text() -> None:
    now_s = [0.0]
    unserved = Unserved((), lambda: now_s[0])
    for uid in ("a", "b"):
        unserved.observe(uid, {**OF_HAMI, "status": {"conditions": [GATED]}})
    now_s[0] = AFTER_S
    (one, _) = unserved.problems()
    assert (one.about, one.uid) == ("/p", "a")
    unserved.observe("a", {**OF_HAMI, "status": {"conditions": [TRIED]}})
    assert unserved.problems() == []
