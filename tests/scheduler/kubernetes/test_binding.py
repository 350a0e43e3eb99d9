"""The content of the Binding."""

from __future__ import annotations

import json

from gpuslice.contract import names
from scheduler.core.place import Peak, Placement, Share
from scheduler.kubernetes import binding

PLACEMENT = Placement(
    "n1",
    (
        Share("first", "GPU-a", 0, 3072, 40),
        Share("main", "GPU-a", 0, 2048, 30),
        Share("main", "GPU-b", 1, 1025, None),
        Share("x" * 60, "GPU-b", 1, 1000, None),
    ),
    (Peak("GPU-a", 0, 3072, 30, 40), Peak("GPU-b", 1, 2025, 19, None)),
)


def test_the_allocation_has_the_most_that_the_pod_has_of_each_gpu() -> None:
    """The entry has no core if none is requested."""
    text = binding.annotations_of(PLACEMENT)[names.ANNOTATION_DEVICE_ALLOCATED]
    assert text == (
        '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"40",'
        '"koordinator.sh/gpu-memory":"3Ki","koordinator.sh/gpu-memory-ratio":"30"},"id":"GPU-a"},'
        '{"minor":1,"resources":{"koordinator.sh/gpu-memory":"2025",'
        '"koordinator.sh/gpu-memory-ratio":"19"},"id":"GPU-b"}]}'
    )


def test_the_grants_have_each_containers_own() -> None:
    text = binding.annotations_of(PLACEMENT)[names.ANNOTATION_GRANTS]
    assert json.loads(text)["containers"] == {
        "first": [{"id": "GPU-a", "minor": 0, "memory": 3072, "core": 40}],
        "main": [
            {"id": "GPU-a", "minor": 0, "memory": 2048, "core": 30},
            {"id": "GPU-b", "minor": 1, "memory": 1025, "core": 100},
        ],
        "x" * 60: [{"id": "GPU-b", "minor": 1, "memory": 1000, "core": 100}],
    }


def test_the_agent_is_required_of_the_pod_and_of_each_container_with_a_grant() -> None:
    annotations = binding.annotations_of(PLACEMENT)
    required = {key for key in annotations if key.startswith(names.ANNOTATION_REQUIRED_PLUGINS)}
    prefix = names.ANNOTATION_REQUIRED_PLUGINS
    assert required == {f"{prefix}/pod", f"{prefix}/container.first", f"{prefix}/container.main"}
