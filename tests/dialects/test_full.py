"""How pods share one GPU of 46068 MiB: how many of KAI's fit, and containers of a pod of HAMi's."""

from __future__ import annotations

import json

import pytest

from tests.dialects.pods import asleep, bound, create, fields, waits
from tests.e2e.inside import inside, limit_bytes
from tests.e2e.whole import Whole
from tests.requests.pods import asking, pod
from tests.support import MIB, until

pytestmark = pytest.mark.e2e

GPUS = "1x46068Mi"


def test_a_gpu_is_filled_and_the_next_pod_waits(empty: Whole) -> None:
    raw, names = asleep("kai/gpu-memory.yaml"), [f"p{number}" for number in range(24)]
    raw["spec"]["containers"][0] |= {"image": "busybox", "imagePullPolicy": "IfNotPresent"}
    raw["spec"]["terminationGracePeriodSeconds"] = 0
    create(empty, [{**raw, "metadata": {**raw["metadata"], "name": name}} for name in names])
    until(lambda: len(bound(empty)) == 23, "23 pods have a node")
    (late,) = set(names) - set(bound(empty))
    assert "slice 68 MiB of the 2000 MiB requested" in waits(empty, late)
    for name in sorted(bound(empty)):
        empty.ready(name)
    assert limit_bytes(empty, sorted(bound(empty))[-1]) == 2000 * MIB
    assert len(bound(empty)) == 23


def test_containers_with_and_without_cores_share_the_gpu(empty: Whole) -> None:
    """The pod names HAMi's scheduler and its variable for a forced limit of compute."""
    asked = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8000, "nvidia.com/gpucores": 50}
    force = [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"}]
    raw = pod(
        asking(asked, "llm", env=force),
        asking({"nvidia.com/vgpu": 1, "nvidia.com/gpumem": 4000}, "embed"),
        scheduler="hami-scheduler",
    )
    for each in raw["spec"]["containers"]:
        each |= {"image": "busybox", "imagePullPolicy": "IfNotPresent", "command": ["sleep", "1d"]}
    create(empty, [raw])
    empty.ready("p")
    for container, mib in (("llm", 8000), ("embed", 4000)):
        assert json.loads(inside(empty, "p", "cuda-probe", container))["total"] == mib * MIB
    assert fields(empty, "p")["metadata"]["annotations"]["gpuslice.io/compute.llm"] == "capped"
