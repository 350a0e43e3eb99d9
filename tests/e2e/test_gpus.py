"""Whole, shared and failed GPUs of a node: the agent is the device plugin of a real kubelet.

In the order of the file: one story of one cluster with two GPUs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from gpuslice.contract import names
from lab.cluster.running import NODE
from nri_plugin.host.cdi_generator import FILE
from tests.e2e import node
from tests.e2e.whole import HALF, Whole, allocatable, running
from tests.support import until

pytestmark = pytest.mark.e2e

_MIB = 23040
_ONE = {names.RESOURCE_NVIDIA_GPU: 1}
_QUERY = "nvidia-smi --format=csv,noheader,nounits --query-gpu"


@pytest.fixture(scope="module")
def whole(build_dir: Path) -> Iterator[Whole]:
    assert build_dir.is_dir()
    with running(f"2x{_MIB}Mi") as cluster:
        cluster.install("--set=wholeGpus=any")
        yield cluster


def test_a_whole_gpu_beside_a_shared_one(whole: Whole) -> None:
    _offers(whole, "2", "200")
    whole.run_pod("half", HALF)
    whole.run_pod("whole", _ONE)
    assert _inside(whole, "whole", "memory.total") == str(_MIB)
    assert _inside(whole, "half", "memory.total") == str(_MIB // 2)
    assert _uuid(whole, "whole") != _uuid(whole, "half")
    held = {_uuid(whole, "whole"): "Whole", _uuid(whole, "half"): "Usable"}
    until(lambda: _modes(whole) == held, "the Device says which GPU is held whole")
    _offers(whole, "1", "100")


def test_a_whole_gpu_gets_no_share_and_no_other_pod(whole: Whole) -> None:
    whole.run_pod("other-half", HALF)
    assert _uuid(whole, "other-half") == _uuid(whole, "half")
    whole.make_pod("late", HALF)
    whole.make_pod("late-whole", _ONE)
    for pod in ("late", "late-whole"):
        until(lambda pod=pod: "FailedScheduling" in whole.events(pod), f"{pod} waits")  # type: ignore[misc]


def test_a_deleted_pod_releases_its_whole_gpu(whole: Whole) -> None:
    """A pod of each kind waits. The first that takes the GPU gets it."""
    before = _uuid(whole, "whole")
    whole.kubectl("delete", "pod", "whole")
    for pod in ("late-whole", "late"):
        whole.ready(pod)
        assert _uuid(whole, pod) == before
        if pod == "late-whole":
            whole.kubectl("delete", "pod", pod)
    until(lambda: allocatable(whole, names.RESOURCE_NVIDIA_GPU) == "0", "both GPUs are shared")


def test_a_failed_gpu_counts_while_a_pod_has_a_share_of_it(whole: Whole) -> None:
    whole.kubectl("delete", "pod", "half", "other-half")
    whole.run_pod("good", _ONE)
    until(lambda: _healthy(whole) == {_uuid(whole, "late")}, "one GPU takes shares")
    _to_gpu(whole, "lose", "late")
    until(lambda: not _healthy(whole), "the Device reports the failed GPU")
    until(lambda: names.EVENT_GPU_FAILED in whole.events("late"), "an event of the pod")
    assert names.EVENT_GPU_FAILED not in whole.events("good")
    _offers(whole, "1", "100")


@pytest.mark.parametrize("part", ["kubelet", "gpuslice node agent", "containerd"])
def test_a_component_that_restarts_ends_no_pod(whole: Whole, part: str) -> None:
    """A kubelet admits all pods again, also those that have a failed GPU."""
    before = whole.pid(part)
    whole.kill(before)
    until(lambda: whole.state["parts"][part]["pid"] not in (before, None), f"{part} is back")
    until(whole.well, "the cluster is well")
    for pod in ("good", "late"):
        until(partial(whole.answers, pod), f"kubelet knows {pod}")
        path = "jsonpath={.status.phase} {.status.containerStatuses[0].restartCount}"
        assert whole.kubectl("get", "pod", pod, "-o", path) == "Running 0"
    _offers(whole, "1", "100")
    assert _modes(whole)[_uuid(whole, "good")] == "Whole"


def test_a_gpu_that_is_back_is_used_again(whole: Whole) -> None:
    _to_gpu(whole, "restore", "late")
    until(lambda: _healthy(whole) == {_uuid(whole, "late")}, "the Device says that it is back")
    whole.run_pod("beside", HALF)
    assert _uuid(whole, "beside") == _uuid(whole, "late")


def test_a_share_by_the_spec_that_the_agents_pod_generates(whole: Whole) -> None:
    """The host has no CDI spec: nvidia-ctk writes one, in the chart's pod."""
    whole.kubectl("delete", "pod", "--all")
    (spec,) = whole.directory.glob("gpuslice-lab-*/sim/cdi/nvidia.json")
    spec.unlink()
    selected = ("-n", names.NAMESPACE, "-l", "app.kubernetes.io/name=gpuslice-agent")
    whole.kubectl("delete", "pod", *selected, "--wait=true")
    until(whole.well, "the cluster is well")
    whole.run_pod("half", HALF)
    taken = json.loads(whole.inside("half", "cuda-probe"))
    assert (taken["total"], taken["filled"]) == (_MIB // 2 << 20, 0)
    log = whole.kubectl("logs", "-n", names.NAMESPACE, "ds/gpuslice-agent")
    assert 'msg="CDI spec generated"' in log and FILE in log


def _offers(whole: Whole, gpus: str, percent: str) -> None:
    def found() -> tuple[str, str]:
        return allocatable(whole, names.RESOURCE_NVIDIA_GPU), allocatable(whole, names.RESOURCE_GPU)

    until(lambda: found() == (gpus, percent), f"the node offers {gpus} GPUs and {percent} percent")


def _to_gpu(whole: Whole, what: str, pod: str) -> None:
    """To the GPU of the pod."""
    (entry,) = json.loads(whole.allocated(pod))["gpu"]
    asked = {"op": what, "gpu": entry["minor"]}
    assert "error" not in node.ask_gpus(Path(whole.state["directory"]), asked)


def _inside(whole: Whole, pod: str, query: str) -> str:
    return whole.inside(pod, f"{_QUERY}={query}").strip()


def _uuid(whole: Whole, pod: str) -> str:
    return _inside(whole, pod, "uuid")


def _device(whole: Whole) -> list[Mapping[str, object]]:
    found = json.loads(whole.kubectl("get", names.DEVICE_PLURAL, NODE, "-o=json"))
    devices: list[Mapping[str, object]] = found["spec"]["devices"]
    return devices


def _healthy(whole: Whole) -> set[str]:
    """One that is held whole is not: it takes no share."""
    return {str(each["id"]) for each in _device(whole) if each["health"]}


def _modes(whole: Whole) -> Mapping[str, str]:
    return {str(e["id"]): e["conditions"][0]["reason"] for e in _device(whole)}  # type: ignore[index]
