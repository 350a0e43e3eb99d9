"""HAMi's dialect beside a DeviceClass of NVIDIA's DRA driver that maps `nvidia.com/gpu`."""

from __future__ import annotations

from typing import Any, Final

import pytest
import yaml

from gpuslice.contract import names
from gpuslice.contract.dialects import HAMI_GPU, HAMI_MEMORY
from lab.cluster import manifests
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Shape
from lab.cluster.installation import Installation
from tests.chart.rendering import Json, command, objects, one
from tests.cluster.admission.judging import all_dialects, tried
from tests.cluster.running import Pods
from tests.cluster.server import Server
from tests.requests.pods import asking, pod
from tests.support import until

pytestmark = pytest.mark.cluster

_ON: Final = "--set=dialects.hami.enabled=true"
_CLASS: Final[Json] = {
    "metadata": {"name": "gpu.nvidia.com"},
    "spec": {
        "extendedResourceName": HAMI_GPU,
        "selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}],
    },
}


def _feature_gates(rendered: list[Json]) -> list[str]:
    words = command(rendered, "Deployment", names.SCHEDULER_NAME)
    return [word for word in words if word.startswith("--feature-gates=")]


def test_a_device_class_for_nvidias_gpus_stops_no_share(
    installed: ControlPlane, server: Server
) -> None:
    """The gate DRAExtendedResource would make kube-scheduler require a DRA device of the class."""
    rendered = objects({}, _ON)
    data = one(rendered, "ConfigMap", manifests.CONFIG_MAP)["data"]
    runs: dict[str, Any] = {
        "configuration": yaml.safe_load(data[manifests.CONFIG_FILE]),
        "arguments": ["--dialects=koordinator,hami"],
        "options": _feature_gates(rendered),
    }
    asked = pod(asking({HAMI_GPU: 1, HAMI_MEMORY: 3000}), name="hami")
    with (
        server.made("/apis/resource.k8s.io/v1/deviceclasses", _CLASS),
        all_dialects(installed),
        Fleet(installed, Shape(nodes=1, gpus=2, prefix="class-").all_nodes()),
        Installation(installed, name="hami", **runs),
        Pods(installed) as pods,
    ):
        until(lambda: tried(server, asked).done, "the dialect is on")
        annotations = pods.bound(pods.add(asked))["metadata"]["annotations"]
        assert names.ANNOTATION_DEVICE_ALLOCATED in annotations


@pytest.mark.parametrize(
    ("tag", "dialect", "is_set"),
    [
        ("v1.33.9", True, False),  # kube-scheduler 1.33 does not know the feature gate
        ("v1.34.0", True, True),
        ("v1.36.3", True, True),
        ("v1.37.0", True, False),  # a later kube-scheduler may not allow the gate to be off
        ("v1.36.3", False, False),
    ],
)
def test_the_mapping_is_off_where_kube_scheduler_has_the_gate(
    tag: str, dialect: bool, is_set: bool
) -> None:
    values = {"images": {"kubeScheduler": {"tag": tag}}}
    gates = _feature_gates(objects(values, *([_ON] * dialect)))
    assert gates == ["--feature-gates=DRAExtendedResource=false"] * is_set
