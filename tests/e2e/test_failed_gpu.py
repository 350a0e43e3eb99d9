"""Two of three GPUs fall off the bus, then parts are killed: a kubelet admits all pods again.

In the order of the file: one story of one cluster.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpuslice.contract import names
from tests.e2e import node
from tests.e2e.whole import HALF, WHOLE_GPU, Whole, running
from tests.support import until

pytestmark = pytest.mark.e2e

_GPU_BYTES = 23040 << 20
_OUT_OF_MEMORY = 2


@pytest.fixture(scope="module")
def whole(build_dir: Path) -> Iterator[Whole]:
    assert build_dir.is_dir()
    with running("3x23040Mi") as cluster:
        yield cluster


def test_the_device_and_the_totals_show_failed_gpus(whole: Whole) -> None:
    """Totals count a GPU while it is healthy, or a pod has a share of it."""
    whole.run_pod("good", HALF)
    whole.run_pod("bad", WHOLE_GPU)
    assert _totals(whole) == _of_gpus(3)
    (free,) = {0, 1, 2} - {_minor(whole, "good"), _minor(whole, "bad")}
    _to_gpus(whole, "lose", _minor(whole, "bad"), free)
    until(lambda: _healthy(whole) == {_minor(whole, "good")}, "the Device reports the failed GPUs")
    until(lambda: _totals(whole) == _of_gpus(2), "the totals are without the missing GPU")


def test_a_pod_that_has_a_share_of_a_failed_gpu_gets_an_event(whole: Whole) -> None:
    until(lambda: names.EVENT_GPU_FAILED in whole.events("bad"), "an event of the pod")
    assert names.EVENT_GPU_FAILED not in whole.events("good")


@pytest.mark.parametrize("part", ["kubelet", "gpuslice node agent", "containerd"])
def test_a_component_that_restarts_ends_no_pod(whole: Whole, part: str) -> None:
    before = whole.pid(part)
    whole.kill(before)
    until(lambda: whole.state["parts"][part]["pid"] not in (before, None), f"{part} is back")
    until(whole.well, "the cluster is well")
    for pod in ("good", "bad"):
        until(lambda pod=pod: whole.answers(pod), f"kubelet knows {pod}")  # type: ignore[misc]
        assert _phase(whole, pod) == "Running 0"
    until(lambda: _totals(whole) == _of_gpus(2), "the totals are as they were")
    assert _healthy(whole) == {_minor(whole, "good")}
    taken = json.loads(whole.inside("good", "cuda-probe"))
    assert (taken["total"], taken["filled"]) == (_GPU_BYTES // 2, 0)
    assert taken["more"] == _OUT_OF_MEMORY


def test_pods_are_placed_on_healthy_gpus_only(whole: Whole) -> None:
    whole.run_pod("beside", HALF)
    assert _minor(whole, "beside") == _minor(whole, "good")
    whole.make_pod("late", HALF)
    until(lambda: "FailedScheduling" in whole.events("late"), "it is said why it waits")


def test_a_gpu_that_is_back_is_used_again(whole: Whole) -> None:
    failed = {0, 1, 2} - _healthy(whole)
    _to_gpus(whole, "restore", *failed)
    until(lambda: _healthy(whole) == {0, 1, 2}, "the Device says that they are back")
    until(lambda: _totals(whole) == _of_gpus(3), "the totals are whole")
    whole.ready("late")
    for pod in ("good", "bad", "beside"):
        assert _phase(whole, pod) == "Running 0"


def _to_gpus(whole: Whole, what: str, *minors: int) -> None:
    for minor in minors:
        answer = node.ask_gpus(Path(whole.state["directory"]), {"op": what, "gpu": minor})
        assert "error" not in answer


def _minor(whole: Whole, pod: str) -> int:
    (entry,) = json.loads(whole.allocated(pod))["gpu"]
    return int(entry["minor"])


def _healthy(whole: Whole) -> set[int]:
    device = json.loads(whole.kubectl("get", names.DEVICE_PLURAL, whole.state["node"], "-o=json"))
    return {each["minor"] for each in device["spec"]["devices"] if each["health"]}


def _totals(whole: Whole) -> Mapping[str, str]:
    status = json.loads(whole.kubectl("get", "node", whole.state["node"], "-o=json"))["status"]
    assert status["capacity"].items() >= _ours(status["allocatable"]).items()
    return _ours(status["allocatable"])


def _ours(amounts: Mapping[str, str]) -> Mapping[str, str]:
    return {key: amounts[key] for key in _of_gpus(1) if key in amounts}


def _of_gpus(count: int) -> Mapping[str, str]:
    parts = (
        *(names.RESOURCE_GPU, names.RESOURCE_CORE),
        *(names.RESOURCE_MEMORY_RATIO, names.RESOURCE_SHARED),
    )
    return {
        **dict.fromkeys(parts, str(100 * count)),
        names.RESOURCE_MEMORY: str(_GPU_BYTES * count),
    }


def _phase(whole: Whole, pod: str) -> str:
    """Return the phase, and how often the pod's container was restarted."""
    path = "jsonpath={.status.phase} {.status.containerStatuses[0].restartCount}"
    return whole.kubectl("get", "pod", pod, "-o", path)
