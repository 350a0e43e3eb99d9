"""The example document that the product started from: its pod and its annotation."""

from __future__ import annotations

import json
from typing import Any

from contract import names
from scheduler.core.fit import fit
from scheduler.core.place import Placement, place
from scheduler.decisions.state import State
from scheduler.kubernetes import binding, requests, translate

Mi = 2**20
FULL = (
    '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"100",'
    '"koordinator.sh/gpu-memory":"23040Mi","koordinator.sh/gpu-memory-ratio":"100"},"id":"GPU-0"}]}'
)
SHARE = {
    "koordinator.sh/gpu.shared": 1,
    "koordinator.sh/gpu-core": 50,
    "koordinator.sh/gpu-memory-ratio": 50,
}
POD: dict[str, Any] = {
    "metadata": {
        "name": "pod-example",
        "namespace": "default",
        "uid": "u-1",
        "labels": {"koordinator.sh/gpu-isolation-provider": "hami-core"},
    },
    "spec": {"containers": [{"name": "main", "resources": {"limits": SHARE, "requests": SHARE}}]},
}
NODE = {
    "metadata": {
        "name": "n1",
        "uid": "node-1",
        "labels": {"koordinator.sh/gpu-isolation-provider": "HAMi-core"},
    }
}
DEVICE = {
    "metadata": {"name": "n1"},
    "spec": {
        "devices": [
            {
                "type": "gpu",
                "id": f"GPU-{minor}",
                "minor": minor,
                "health": True,
                "resources": {"koordinator.sh/gpu-memory": "23040Mi"},
            }
            for minor in (0, 1)
        ]
    },
}
LEASE = {
    "metadata": {
        "namespace": "gpuslice-system",
        "name": "agent-n1",
        "annotations": {"gpuslice.io/ready": "true"},
    },
    "spec": {"renewTime": "2026-01-01T00:00:00.000000Z"},
}
BOUND = {
    "metadata": {"uid": "u-0", "annotations": {names.ANNOTATION_DEVICE_ALLOCATED: FULL}},
    "spec": {"nodeName": "n1"},
}


def test_the_pod_gets_the_annotation_that_the_document_shows() -> None:
    state = State()
    state.see_pod(translate.pod(BOUND))
    state.see_device(translate.device(DEVICE))
    state.see_node(translate.node(NODE))
    agent = translate.lease(LEASE)
    assert agent is not None
    state.see_lease(agent, 0.0)
    asked = requests.request(POD)
    assert asked is not None
    feasible, reasons = fit(state.fleet, asked, state.fleet.rows_of(["n1"]))
    assert feasible.all(), reasons
    chosen = place(state.fleet, asked, state.fleet.row_of("n1"))
    assert isinstance(chosen, Placement)
    made = binding.binding("default", "pod-example", "u-1", "n1", chosen)
    annotations = made["metadata"]["annotations"]
    assert annotations[names.ANNOTATION_DEVICE_ALLOCATED] == (
        '{"gpu":[{"minor":1,"resources":{"koordinator.sh/gpu-core":"50","koordinator.sh/gpu-memory"'
        ':"11520Mi","koordinator.sh/gpu-memory-ratio":"50"},"id":"GPU-1"}]}'
    )
    assert json.loads(annotations[names.ANNOTATION_GRANTS]) == {
        "v": 1,
        "containers": {
            "main": [{"id": "GPU-1", "minor": 1, "memory": 11520 * Mi, "core": 50}],
        },
    }
    assert annotations["required-plugins.noderesource.dev/pod"] == '["gpuslice"]'
    assert annotations["required-plugins.noderesource.dev/container.main"] == '["gpuslice"]'
