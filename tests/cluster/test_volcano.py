"""Volcano's pods and its ConfigMap, with a real kube-scheduler and the chart's rights."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from contract import names
from contract.dialects import VOLCANO, VOLCANO_MEMORY, VOLCANO_NUMBER
from lab.cluster import manifests
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Shape
from lab.cluster.installation import Installation
from scheduler.dialects.volcano_conf import CONFIG_MAP, KEY, NAMESPACE
from scheduler.events import VOLCANO_PROBLEM
from tests.cluster.admission.requested import asking, pod
from tests.cluster.running import Pods
from tests.scheduler.dialects.test_volcano_conf import GUIDE
from tests.support import until
from tools import chart

pytestmark = pytest.mark.cluster

_ON: Final = "--set=dialects.volcano.enabled=true"
_MIB: Final = 11178
_CM: Final = ("configmap", CONFIG_MAP, f"-n={NAMESPACE}")


def _configuration() -> dict[str, Any]:
    rendered = chart.render(_ON, "--show-only=templates/scheduler/configuration.yaml")
    data = yaml.safe_load(rendered)["data"]
    found: dict[str, Any] = yaml.safe_load(data[manifests.CONFIG_FILE])
    return {**found, "leaderElection": {"leaderElect": False}}


@pytest.fixture(scope="module")
def plane(installed: ControlPlane) -> Iterator[ControlPlane]:
    """A node as in Volcano's guide, and the scheduler with the dialect on."""
    rights = chart.render(_ON, "--show-only=templates/scheduler/volcano.yaml")
    installed.kubectl("apply", "-f", "-", given=rights)
    installed.kubectl(
        "delete", "lease", names.LEASE_SCHEDULER, f"-n={names.NAMESPACE}", "--ignore-not-found"
    )
    installed.apply_json(*manifests.objects("Lease"))
    shape = Shape(nodes=1, gpus=8, memory_bytes=_MIB << 20, prefix="volcano-")
    options = ["--dialects=koordinator,volcano"]
    with (
        Fleet(installed, shape.all_nodes()),
        Installation(installed, _configuration(), "volcano", arguments=options),
    ):
        yield installed
    for kind in ("clusterrolebinding", "clusterrole"):
        installed.kubectl("delete", kind, "gpuslice-scheduler-volcano")
    installed.remove_namespace(NAMESPACE)


class _Pods(Pods):
    def create(self, limits: dict[str, Any]) -> str:
        name = f"volcano-{secrets.token_hex(4)}"
        return self.add(pod(asking(limits), scheduler=VOLCANO.scheduler_name, name=name))

    def refused(self, name: str, text: str) -> None:
        until(
            lambda: any(text in note for _, note in self.events(name)),
            f"{name} is refused: {text}",
        )


@pytest.fixture
def pods(plane: ControlPlane) -> Iterator[_Pods]:
    with _Pods(plane) as made:
        yield made


def configure(plane: ControlPlane, text: str) -> None:
    metadata = {"name": CONFIG_MAP, "namespace": NAMESPACE}
    written = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: text}}
    plane.kubectl("apply", "-f", "-", given=json.dumps(written))


def test_pods_of_the_guide_are_on_gpu_0(plane: ControlPlane, pods: _Pods) -> None:
    """And a pod with a whole GPU gets the first that has nothing on it."""
    configure(plane, GUIDE)
    for _ in range(2):
        pod = pods.bound(pods.create({VOLCANO_MEMORY: 1024}))
        written = pod["metadata"]["annotations"]
        assert written["volcano.sh/gpu-index"] == "0"
        assert len(written["volcano.sh/predicate-time"]) == len("1593764466550835304")
        grants = json.loads(written[names.ANNOTATION_GRANTS])
        assert grants["visible"] == "index"
        assert grants["env"] == {
            "main": {"VOLCANO_GPU_ALLOCATED": "1024", "VOLCANO_GPU_MEMORY_TOTAL": str(_MIB)}
        }
    pods.refused(
        pods.create({VOLCANO_NUMBER: 1}),
        "container main: volcano.sh/gpu-number: must be absent, as predicate.GPUNumberEnable is"
        " off; set predicate.GPUNumberEnable: true in ConfigMap"
        " volcano-system/volcano-scheduler-configmap",
    )
    plane.kubectl("delete", *_CM)
    log = plane.directory / "volcano.extender.log"
    until(lambda: 'on="deviceshare' in log.read_text(), "the deletion is seen")
    two = pods.bound(pods.create({VOLCANO_NUMBER: 2}))
    assert two["metadata"]["annotations"]["volcano.sh/gpu-index"] == "1,2"


def test_what_volcano_would_not_accept_becomes_an_event(plane: ControlPlane) -> None:
    both = "      predicate.GPUNumberEnable: true\n"
    configure(plane, GUIDE.replace("gpu sharing\n", f"gpu sharing\n{both}"))
    wanted = "can not define true in both gpu sharing and gpu number"

    def notes() -> list[str]:
        query = ("get", "events", f"-n={NAMESPACE}", "-o=json")
        listed = json.loads(plane.kubectl(*query))["items"]
        return [each["message"] for each in listed if each["reason"] == VOLCANO_PROBLEM]

    until(lambda: any(note.startswith(wanted) for note in notes()), "the event")
    plane.kubectl("delete", *_CM)
