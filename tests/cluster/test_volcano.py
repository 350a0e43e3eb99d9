"""Volcano's pods with a real kube-scheduler and the chart's rights."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from gpuslice.contract import names
from gpuslice.contract.dialects import VOLCANO, VOLCANO_MEMORY, VOLCANO_NUMBER
from lab.cluster import manifests
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Shape
from lab.cluster.installation import Installation
from tests.cluster.admission.requested import asking, pod
from tests.cluster.running import Pods
from tools import chart

pytestmark = pytest.mark.cluster

_ON: Final = "--set=dialects.volcano.enabled=true"
_MIB: Final = 11178


def _configuration() -> dict[str, Any]:
    rendered = chart.render(_ON, "--show-only=templates/scheduler/configuration.yaml")
    data = yaml.safe_load(rendered)["data"]
    found: dict[str, Any] = yaml.safe_load(data[manifests.CONFIG_FILE])
    return found


@pytest.fixture(scope="module")
def plane(installed: ControlPlane) -> Iterator[ControlPlane]:
    """A node as in Volcano's guide, and the scheduler with the dialect on."""
    shape = Shape(nodes=1, gpus=8, memory_bytes=_MIB << 20, prefix="volcano-")
    options = ["--dialects=koordinator,volcano"]
    with (
        Fleet(installed, shape.all_nodes()),
        Installation(installed, _configuration(), "volcano", arguments=options),
    ):
        yield installed


class _Pods(Pods):
    def create(self, limits: dict[str, Any]) -> str:
        name = f"volcano-{secrets.token_hex(4)}"
        return self.add(pod(asking(limits), scheduler=VOLCANO.scheduler_name, name=name))


@pytest.fixture
def pods(plane: ControlPlane) -> Iterator[_Pods]:
    with _Pods(plane) as made:
        yield made


def test_pods_of_the_guide_are_on_gpu_0(pods: _Pods) -> None:
    """A pod with two whole GPUs gets the first that have nothing on them."""
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
    two = pods.bound(pods.create({VOLCANO_NUMBER: 2}))
    assert two["metadata"]["annotations"]["volcano.sh/gpu-index"] == "1,2"
