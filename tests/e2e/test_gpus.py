"""Whole, shared and failed GPUs of a node: the agent is the device plugin of a real kubelet.

The tests run in the order of the file, on one cluster with two GPUs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuslice.contract import names
from lab.cluster.running import NODE
from tests.e2e import node
from tests.e2e.whole import HALF, Whole, allocatable, running
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


def _offers(whole: Whole, gpus: str, percent: str) -> None:
    def found() -> tuple[str, str]:
        return allocatable(whole, names.RESOURCE_NVIDIA_GPU), allocatable(whole, names.RESOURCE_GPU)

    until(lambda: found() == (gpus, percent), f"the node offers {gpus} GPUs and {percent} percent")


def _to_gpu_of(whole: Whole, pod: str, what: str) -> None:
    (entry,) = json.loads(whole.allocated(pod))["gpu"]
    asked = {"op": what, "gpu": entry["minor"]}
    assert "error" not in node.ask_gpus(Path(whole.state["directory"]), asked)


def _device(whole: Whole) -> list[dict[str, Any]]:
    found = json.loads(whole.kubectl("get", names.DEVICE_PLURAL, NODE, "-o=json"))
    devices: list[dict[str, Any]] = found["spec"]["devices"]
    return devices


def _healthy(whole: Whole) -> set[str]:
    """Return the GPUs that accept shares. A GPU that a pod holds whole accepts none."""
    return {each["id"] for each in _device(whole) if each["health"]}


def _modes(whole: Whole) -> dict[str, str]:
    return {each["id"]: each["conditions"][0]["reason"] for each in _device(whole)}


def test_a_whole_gpu_beside_a_shared_one(whole: Whole) -> None:
    _offers(whole, "2", "200")
    whole.run_pod("half", HALF)
    whole.run_pod("whole", _ONE)
    assert whole.gpu("whole", "memory.total") == str(_MIB)
    assert whole.gpu("half", "memory.total") == str(_MIB // 2)
    held = {whole.gpu("whole", "uuid"): "Whole", whole.gpu("half", "uuid"): "Usable"}
    assert len(held) == 2
    until(lambda: _modes(whole) == held, "the Device says which GPU is held whole")
    _offers(whole, "1", "100")


def test_a_whole_gpu_gets_no_share_and_no_other_pod(whole: Whole) -> None:
    """Two pods wait. Each gets the GPU once the pod that holds the whole GPU is deleted."""
    whole.run_pod("other-half", HALF)
    assert whole.gpu("other-half", "uuid") == whole.gpu("half", "uuid")
    whole.make_pod("late", HALF)
    whole.make_pod("late-whole", _ONE)

    def wait() -> bool:
        return all("FailedScheduling" in whole.events(pod) for pod in ("late", "late-whole"))

    until(wait, "both wait")
    before = whole.gpu("whole", "uuid")
    for gone, pod in (("whole", "late-whole"), ("late-whole", "late")):
        whole.kubectl("delete", "pod", gone)
        whole.ready(pod)
        assert whole.gpu(pod, "uuid") == before
    until(lambda: allocatable(whole, names.RESOURCE_NVIDIA_GPU) == "0", "both GPUs are shared")


def test_a_failed_gpu_counts_while_a_pod_has_a_share_of_it(whole: Whole) -> None:
    whole.kubectl("delete", "pod", "half", "other-half")
    whole.run_pod("good", _ONE)
    until(lambda: _healthy(whole) == {whole.gpu("late", "uuid")}, "one GPU takes shares")
    _to_gpu_of(whole, "late", "lose")
    until(lambda: not _healthy(whole), "the Device reports the failed GPU")
    until(lambda: names.EVENT_GPU_FAILED in whole.events("late"), "an event of the pod")
    assert names.EVENT_GPU_FAILED not in whole.events("good")
    _offers(whole, "1", "100")


@pytest.mark.parametrize("part", ["kubelet", "gpuslice node agent", "containerd"])
def test_a_component_that_restarts_ends_no_pod(whole: Whole, part: str) -> None:
    """A restarted kubelet admits all pods of its node again, also those whose GPU has failed."""
    whole.restart(part)
    until(lambda: whole.answers("good") and whole.answers("late"), "kubelet knows the pods")
    assert (whole.restarts("good"), whole.restarts("late")) == (0, 0)
    _offers(whole, "1", "100")
    assert _modes(whole)[whole.gpu("good", "uuid")] == "Whole"


def test_a_gpu_that_is_back_is_used_again(whole: Whole) -> None:
    _to_gpu_of(whole, "late", "restore")
    until(lambda: _healthy(whole) == {whole.gpu("late", "uuid")}, "the Device says that it is back")
    whole.run_pod("beside", HALF)
    assert whole.gpu("beside", "uuid") == whole.gpu("late", "uuid")
