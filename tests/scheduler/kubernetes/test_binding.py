"""The content of the Binding."""

from __future__ import annotations

import json

import pytest

from gpuslice.contract import names
from scheduler.core.place import Peak, Placement, Share
from scheduler.kubernetes import binding, requests
from tests.scheduler import objects

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


@pytest.mark.parametrize(("containers", "gpus"), [(1, 1), (1, 16), (32, 1), (32, 16)])
def test_a_pod_whose_annotations_leave_no_room_for_the_bindings_is_refused(
    containers: int, gpus: int
) -> None:
    """With more than the API server accepts, the kubelet could never write the pod's status."""
    called = [f"{number:02}{'x' * 52}" for number in range(containers)]
    on = [(f"GPU-{number:036}", number) for number in range(16)]
    shares = [
        Share(name, *on[(number + gpu) % 16], (1 << 40) - 1, 100)
        for number, name in enumerate(called)
        for gpu in range(gpus)
    ]
    peaks = [Peak(*each, (1 << 40) - 1, 100, 100) for each in on[: containers * gpus]]
    added = binding.binding(
        "a", "b", "c", "n", binding.annotations_of(Placement("n", shares, peaks))
    )
    size = sum(len(key) + len(text) for key, text in added["metadata"]["annotations"].items())
    asking = [objects.container(name, gpu=100 * gpus) for name in called]

    def refusal(own_bytes: int) -> str:
        annotations = {"note": "x" * (own_bytes - len("note"))}
        return requests.pending(objects.pod(*asking, annotations=annotations)).refusal

    most = int(refusal(requests.MAX_ANNOTATIONS).partition("at most ")[2].partition(" ")[0])
    assert refusal(most) == ""
    assert f"of {most + 1} bytes: must be at most {most} bytes" in refusal(most + 1)
    assert most + size + len(names.ANNOTATION_WRITER) + 100 < requests.MAX_ANNOTATIONS


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
