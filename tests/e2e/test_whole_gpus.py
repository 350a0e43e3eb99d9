"""Whole GPUs beside shared ones: the agent is the device plugin of a real kubelet.

In the order of the file: one story of one cluster with two GPUs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpuslice.contract import names
from lab.cluster.running import NODE
from tests.e2e.whole import HALF, Whole, running
from tests.support import until

pytestmark = pytest.mark.e2e

_MIB = 23040
_ONE = {names.RESOURCE_NVIDIA_GPU: 1}


@pytest.fixture(scope="module")
def whole(build_dir: Path) -> Iterator[Whole]:
    assert build_dir.is_dir()
    with running(f"2x{_MIB}Mi") as cluster:
        cluster.install("--set=wholeGpus=any")
        yield cluster


def test_a_whole_gpu_beside_a_shared_one(whole: Whole) -> None:
    until(lambda: _allocatable(whole) == "2", "the kubelet has two whole GPUs")
    _run(whole, "half", HALF, names.SCHEDULER_NAME)
    until(lambda: _allocatable(whole) == "1", "the shared GPU is not to be had whole")
    _run(whole, "whole", _ONE)
    assert _inside(whole, "whole", "memory.total") == str(_MIB)
    assert _inside(whole, "half", "memory.total") == str(_MIB // 2)
    assert _inside(whole, "whole", "uuid") != _inside(whole, "half", "uuid")
    held = {_inside(whole, "whole", "uuid"): "Whole", _inside(whole, "half", "uuid"): "Usable"}
    until(lambda: _modes(whole) == held, "the Device says which GPU is held whole")
    until(lambda: _total(whole) == "100", "the node offers shares of one GPU")


def test_a_whole_gpu_gets_no_share_and_no_other_pod(whole: Whole) -> None:
    _run(whole, "other-half", HALF, names.SCHEDULER_NAME)
    assert _inside(whole, "other-half", "uuid") == _inside(whole, "half", "uuid")
    _make(whole, "late", HALF, names.SCHEDULER_NAME)
    _make(whole, "late-whole", _ONE)
    for pod in ("late", "late-whole"):
        until(lambda pod=pod: _waits(whole, pod), f"{pod} waits")  # type: ignore[misc]


@pytest.mark.parametrize("part", ["kubelet", "gpuslice node agent"])
def test_a_component_that_restarts_ends_no_pod(whole: Whole, part: str) -> None:
    before = whole.pid(part)
    whole.kill(before)
    until(lambda: whole.state["parts"][part]["pid"] not in (before, None), f"{part} is back")
    until(whole.well, "the cluster is well")
    until(lambda: _allocatable(whole) == "1", "the plugin is registered again")
    for pod in ("whole", "half", "other-half"):
        until(partial(whole.answers, pod), f"kubelet knows {pod}")
        path = "jsonpath={.status.phase} {.status.containerStatuses[0].restartCount}"
        assert whole.kubectl("get", "pod", pod, "-o", path) == "Running 0"
    assert _modes(whole)[_inside(whole, "whole", "uuid")] == "Whole"
    assert _total(whole) == "100"


def test_a_deleted_pod_releases_its_whole_gpu(whole: Whole) -> None:
    """A pod of each kind waits. The first that takes the GPU gets it."""
    before = _inside(whole, "whole", "uuid")
    whole.kubectl("delete", "pod", "whole")
    whole.kubectl("wait", "--for=condition=Ready", "--timeout=60s", "pod/late-whole")
    assert _inside(whole, "late-whole", "uuid") == before
    whole.kubectl("delete", "pod", "late-whole")
    whole.kubectl("wait", "--for=condition=Ready", "--timeout=100s", "pod/late")
    assert _inside(whole, "late", "uuid") == before
    until(lambda: _allocatable(whole) == "0", "both GPUs are shared")
    assert set(_modes(whole).values()) == {"Usable"}


def test_of_both_kinds_at_once_one_pod_gets_each_gpu(whole: Whole) -> None:
    """Two of each kind, for two GPUs. The others wait, are refused, or are rejected."""
    whole.kubectl("delete", "pod", "--all")
    until(lambda: _allocatable(whole) == "2", "both GPUs are free")
    pods = ["share-0", "whole-0", "share-1", "whole-1"]
    made = [
        _pod(name, _ONE)
        if name.startswith("whole")
        else _pod(name, {names.RESOURCE_GPU: 100}, names.SCHEDULER_NAME)
        for name in pods
    ]
    listed = {"apiVersion": "v1", "kind": "List", "items": made}
    whole.kubectl("create", "-f", "-", given=json.dumps(listed))

    def running() -> list[str]:
        return [name for name in pods if whole.answers(name)]

    until(lambda: len(running()) == 2, "two pods run")
    assert len({_inside(whole, name, "uuid") for name in running()}) == 2


def _pod(
    name: str, limits: Mapping[str, Any], scheduler: str = "default-scheduler"
) -> Mapping[str, Any]:
    container = {
        "name": "main",
        "image": "busybox",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "1d"],
        "resources": {"limits": {"cpu": "40m", "memory": "40Mi", **limits}},
    }
    spec = {
        "containers": [container],
        "schedulerName": scheduler,
        "terminationGracePeriodSeconds": 0,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _make(
    whole: Whole, name: str, limits: Mapping[str, Any], scheduler: str = "default-scheduler"
) -> None:
    made = _pod(name, limits, scheduler)
    whole.kubectl("create", "-f", "-", given=json.dumps(made))


def _run(
    whole: Whole, name: str, limits: Mapping[str, Any], scheduler: str = "default-scheduler"
) -> None:
    _make(whole, name, limits, scheduler)
    whole.kubectl("wait", "--for=condition=Ready", "--timeout=100s", f"pod/{name}")


def _inside(whole: Whole, pod: str, query: str) -> str:
    command = ["nvidia-smi", "--format=csv,noheader,nounits", f"--query-gpu={query}"]
    return whole.kubectl("exec", pod, "--", *command).strip()


def _waits(whole: Whole, pod: str) -> bool:
    events = f"--field-selector=involvedObject.name={pod}"
    return "FailedScheduling" in whole.kubectl("get", "events", events)


def _status(whole: Whole, resource: str) -> str:
    status = json.loads(whole.kubectl("get", "node", NODE, "-o=json"))["status"]
    return str(status["allocatable"].get(resource))


def _allocatable(whole: Whole) -> str:
    return _status(whole, names.RESOURCE_NVIDIA_GPU)


def _total(whole: Whole) -> str:
    return _status(whole, names.RESOURCE_GPU)


def _modes(whole: Whole) -> Mapping[str, str]:
    device = json.loads(whole.kubectl("get", names.DEVICE_PLURAL, NODE, "-o=json"))
    return {each["id"]: each["conditions"][0]["reason"] for each in device["spec"]["devices"]}
