"""Whole GPUs beside shared ones: the agent is the device plugin of a real kubelet.

In the order of the file: one story of one cluster with two GPUs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from contract import names
from lab.cluster.running import NODE, Cluster
from tests.e2e.whole import HALF
from tests.support import until

pytestmark = pytest.mark.e2e

_MIB = 23040
_ONE = {names.RESOURCE_NVIDIA_GPU: 1}


class WithWholeGpus(Cluster):
    def _start_agent(self) -> None:
        """containerd resolves CDI names from a directory of its own."""
        for spec in (self.lab.sim_dir / "cdi").iterdir():
            shutil.copy(spec, self.lab.containerd.paths.cdi)
        options: list[str | Path] = ["--kubeconfig", self._renew_token(), "--node-name", NODE]
        options += ["--whole-gpus", "any", "--kubelet-dir", self.kubelet.directory / "root"]
        self.lab.start_agent(options=options)


@pytest.fixture(scope="module")
def cluster(build_dir: Path) -> Iterator[Cluster]:
    assert build_dir.is_dir()
    with WithWholeGpus([_MIB << 20] * 2, Path("/tmp")) as made:
        yield made


def test_a_whole_gpu_beside_a_shared_one(cluster: Cluster) -> None:
    until(lambda: _allocatable(cluster) == "2", "the kubelet has two whole GPUs")
    _run(cluster, "half", HALF, names.SCHEDULER_NAME)
    until(lambda: _allocatable(cluster) == "1", "the shared GPU is not to be had whole")
    _run(cluster, "whole", _ONE)
    assert _inside(cluster, "whole", "memory.total") == str(_MIB)
    assert _inside(cluster, "half", "memory.total") == str(_MIB // 2)
    assert _inside(cluster, "whole", "uuid") != _inside(cluster, "half", "uuid")
    held = {_inside(cluster, "whole", "uuid"): "Whole", _inside(cluster, "half", "uuid"): "Usable"}
    until(lambda: _modes(cluster) == held, "the Device says which GPU is held whole")
    until(lambda: _total(cluster) == "100", "the node offers shares of one GPU")


def test_no_share_is_placed_on_it_and_no_other_pod_gets_it(cluster: Cluster) -> None:
    _run(cluster, "other-half", HALF, names.SCHEDULER_NAME)
    assert _inside(cluster, "other-half", "uuid") == _inside(cluster, "half", "uuid")
    _make(cluster, "late", HALF, names.SCHEDULER_NAME)
    _make(cluster, "late-whole", _ONE)
    for pod in ("late", "late-whole"):
        until(lambda pod=pod: _waits(cluster, pod), f"{pod} waits")  # type: ignore[misc]


@pytest.mark.parametrize("part", ["kubelet", "gpuslice node agent"])
def test_a_part_that_starts_anew_ends_no_pod(cluster: Cluster, part: str) -> None:
    (found,) = [each for each in cluster.parts if each.name == part]
    if part == "kubelet":
        cluster.kubelet.stop()
    else:
        cluster.lab.stop_agent()
    until(lambda: found.pid() is None, f"{part} is gone")
    found.start()
    until(lambda: _allocatable(cluster) == "1", "the plugin is registered again")
    for pod in ("whole", "half", "other-half"):
        until(_answers(cluster, pod), f"kubelet knows {pod}")
        path = "jsonpath={.status.phase} {.status.containerStatuses[0].restartCount}"
        assert cluster.plane.kubectl("get", "pod", pod, "-o", path) == "Running 0"
    assert _modes(cluster)[_inside(cluster, "whole", "uuid")] == "Whole"
    assert _total(cluster) == "100"


def test_its_end_gives_the_gpu_back(cluster: Cluster) -> None:
    """To the first that takes it: a pod of each kind waits."""
    before = _inside(cluster, "whole", "uuid")
    cluster.plane.kubectl("delete", "pod", "whole")
    cluster.plane.kubectl("wait", "--for=condition=Ready", "--timeout=60s", "pod/late-whole")
    assert _inside(cluster, "late-whole", "uuid") == before
    cluster.plane.kubectl("delete", "pod", "late-whole")
    cluster.plane.kubectl("wait", "--for=condition=Ready", "--timeout=100s", "pod/late")
    assert _inside(cluster, "late", "uuid") == before
    until(lambda: _allocatable(cluster) == "0", "both GPUs are shared")
    assert set(_modes(cluster).values()) == {"Usable"}


def _make(
    cluster: Cluster, name: str, limits: Mapping[str, Any], scheduler: str = "default-scheduler"
) -> None:
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
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    cluster.plane.kubectl("create", "-f", "-", given=json.dumps(pod))


def _run(
    cluster: Cluster, name: str, limits: Mapping[str, Any], scheduler: str = "default-scheduler"
) -> None:
    _make(cluster, name, limits, scheduler)
    cluster.plane.kubectl("wait", "--for=condition=Ready", "--timeout=100s", f"pod/{name}")


def _inside(cluster: Cluster, pod: str, query: str) -> str:
    command = ["nvidia-smi", "--format=csv,noheader,nounits", f"--query-gpu={query}"]
    return cluster.plane.kubectl("exec", pod, "--", *command).strip()


def _answers(cluster: Cluster, pod: str) -> Callable[[], bool]:
    return lambda: cluster.plane.try_kubectl("exec", pod, "--", "true").returncode == 0


def _waits(cluster: Cluster, pod: str) -> bool:
    events = f"--field-selector=involvedObject.name={pod}"
    return "FailedScheduling" in cluster.plane.kubectl("get", "events", events)


def _status(cluster: Cluster, resource: str) -> str:
    status = json.loads(cluster.plane.kubectl("get", "node", NODE, "-o=json"))["status"]
    return str(status["allocatable"].get(resource))


def _allocatable(cluster: Cluster) -> str:
    return _status(cluster, names.RESOURCE_NVIDIA_GPU)


def _total(cluster: Cluster) -> str:
    return _status(cluster, names.RESOURCE_GPU)


def _modes(cluster: Cluster) -> Mapping[str, str]:
    device = json.loads(cluster.plane.kubectl("get", names.DEVICE_PLURAL, NODE, "-o=json"))
    return {each["id"]: each["conditions"][0]["reason"] for each in device["spec"]["devices"]}
