"""A DeviceClass of NVIDIA's DRA driver, which maps `nvidia.com/gpu`, beside HAMi's dialect."""

from __future__ import annotations

import json
import secrets
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
from tests.cluster.admission.requested import asking, pod
from tests.cluster.running import Pods

pytestmark = pytest.mark.cluster

_ON: Final = "--set=dialects.hami.enabled=true"
_CLASS: Final = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu.nvidia.com"},
    "spec": {
        "extendedResourceName": HAMI_GPU,
        "selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}],
    },
}
_POLICIES: Final = (manifests.POLICY, manifests.BINDING)


def _feature_gates(rendered: list[Json]) -> list[str]:
    words = command(rendered, "Deployment", names.SCHEDULER_NAME)
    return [word for word in words if word.startswith("--feature-gates=")]


def _configuration(rendered: list[Json]) -> Json:
    data = one(rendered, "ConfigMap", manifests.CONFIG_MAP)["data"]
    written: Json = yaml.safe_load(data[manifests.CONFIG_FILE])
    return written


def test_a_device_class_for_nvidias_gpus_stops_no_share(own_plane: ControlPlane) -> None:
    """kube-scheduler would look for a device of that class, and find none on any node."""
    rendered = objects({}, _ON)
    own_plane.install_kinds()
    own_plane.apply_json(*(each for each in rendered if each["kind"] not in _POLICIES))
    own_plane.kubectl("create", "-f", "-", given=json.dumps(_CLASS))
    shape = Shape(nodes=1, gpus=2)
    runs: dict[str, Any] = {
        "arguments": ["--dialects=koordinator,hami"],
        "options": _feature_gates(rendered),
    }
    with (
        Fleet(own_plane, shape.all_nodes()),
        Installation(own_plane, _configuration(rendered), "hami", **runs),
        Pods(own_plane) as pods,
    ):
        name = f"hami-{secrets.token_hex(4)}"
        pods.add(pod(asking({HAMI_GPU: 1, HAMI_MEMORY: 3000}), name=name))
        annotations = pods.bound(name)["metadata"]["annotations"]
        assert names.ANNOTATION_DEVICE_ALLOCATED in annotations


@pytest.mark.parametrize(
    ("tag", "dialect", "is_set"),
    [
        ("v1.33.9", True, False),  # does not know the gate
        ("v1.34.0", True, True),
        ("v1.36.3", True, True),
        ("v1.37.0", True, False),  # may refuse to turn it off
        ("v1.36.3", False, False),
    ],
)
def test_the_mapping_is_off_where_kube_scheduler_has_the_gate(
    tag: str, dialect: bool, is_set: bool
) -> None:
    values = {"images": {"kubeScheduler": {"tag": tag}}}
    gates = _feature_gates(objects(values, *([_ON] * dialect)))
    assert gates == ["--feature-gates=DRAExtendedResource=false"] * is_set
