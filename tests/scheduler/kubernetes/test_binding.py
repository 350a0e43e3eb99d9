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


def test_the_annotations_of_a_placement() -> None:
    """The allocation has the pod's peak on each GPU. Core is absent if none is requested. The
    grants have each container's share. The runtime starts these containers only with the agent."""
    written = dict(binding.annotations_of(PLACEMENT))
    assert written.pop(names.ANNOTATION_DEVICE_ALLOCATED) == (
        '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"40",'
        '"koordinator.sh/gpu-memory":"3Ki","koordinator.sh/gpu-memory-ratio":"30"},"id":"GPU-a"},'
        '{"minor":1,"resources":{"koordinator.sh/gpu-memory":"2025",'
        '"koordinator.sh/gpu-memory-ratio":"19"},"id":"GPU-b"}]}'
    )
    assert json.loads(written.pop(names.ANNOTATION_GRANTS))["containers"] == {
        "first": [{"id": "GPU-a", "minor": 0, "memory": 3072, "core": 40}],
        "main": [
            {"id": "GPU-a", "minor": 0, "memory": 2048, "core": 30},
            {"id": "GPU-b", "minor": 1, "memory": 1025, "core": 100},
        ],
        "x" * 60: [{"id": "GPU-b", "minor": 1, "memory": 1000, "core": 100}],
    }
    prefix = names.ANNOTATION_REQUIRED_PLUGINS
    assert set(written) == {
        *(f"{prefix}/{scope}" for scope in ("pod", "container.first", "container.main"))
    }
