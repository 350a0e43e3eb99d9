"""The user guide of Volcano's GPU sharing, step by step, on its node of 8 GPUs of 11178 MiB."""

from __future__ import annotations

import pytest

from tests.dialects.pods import apply, fields
from tests.e2e.inside import inside, limit_bytes
from tests.e2e.whole import Whole
from tests.support import MIB

pytestmark = pytest.mark.e2e

GPUS = "8x11178Mi"
_PODS = ("gpu-pod1", "gpu-pod2")


def test_both_pods_have_gpu_0_and_the_guides_variables(whole: Whole) -> None:
    for pod in _PODS:
        apply(whole, f"volcano/{pod}.yaml")
    for pod in _PODS:
        whole.ready(pod)
    for pod in _PODS:
        environ = inside(whole, pod, "env").splitlines()
        assert {
            "VOLCANO_GPU_MEMORY_TOTAL=11178",
            "VOLCANO_GPU_ALLOCATED=1024",
            "NVIDIA_VISIBLE_DEVICES=0",
        } <= set(environ)
        annotations = fields(whole, pod)["metadata"]["annotations"]
        assert annotations["volcano.sh/gpu-index"] == "0"
        assert len(annotations["volcano.sh/predicate-time"]) == len("1593764466550835304")
        assert limit_bytes(whole, pod) == 1024 * MIB
    listed = [inside(whole, pod, "nvidia-smi -L").splitlines() for pod in _PODS]
    assert listed[0] == listed[1]
    assert len(listed[0]) == 1
