"""Calls of kube-scheduler, byte for byte as Go writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.core.place import Placement, place
from scheduler.decisions.state import State
from scheduler.kubernetes.binding import annotations_of
from scheduler.kubernetes.leases import agent_lease
from scheduler.kubernetes.requests import request
from scheduler.kubernetes.translate import device, node
from scheduler.kubernetes.translate import pod as translate
from tests.scheduler import objects


def dumps(value: object) -> bytes:
    """Return JSON without whitespace, with <, > and & escaped."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode()


def arguments(pod: Mapping[str, Any], names: Sequence[str]) -> bytes:
    """ExtenderArgs."""
    return dumps({"Pod": pod, "Nodes": None, "NodeNames": list(names)})


def preemption(pod: Mapping[str, Any], victims: Mapping[str, Sequence[str]]) -> bytes:
    """ExtenderPreemptionArgs; victims: by node, their UIDs."""
    return dumps({"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": metas(victims)})


def metas(victims: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    return {
        node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0}
        for node, uids in victims.items()
    }


def binding(pod: Mapping[str, Any], node_name: str) -> bytes:
    """ExtenderBindingArgs."""
    metadata = pod["metadata"]
    return dumps(
        {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": node_name,
        }
    )


def pod(uid: str = "u-1", *containers: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """A pod at version 1; by default one container that requests half a GPU."""
    asking = containers or (objects.container("main", core=50, ratio=50),)
    made = objects.pod(*asking, uid=uid, **fields)
    made["metadata"]["resourceVersion"] = "1"
    made["spec"]["schedulerName"] = "gpuslice-scheduler"
    return made


def state(nodes: int = 2, gpus: int = 2, memory: str = "24Gi") -> State:
    """Nodes n0, n1, ... with GPUs GPU-n0-0, GPU-n0-1, ..., all schedulable."""
    made = State()
    for name in names(nodes):
        add_node(made, name, *(objects.gpu(f"GPU-{name}-{n}", n, memory) for n in range(gpus)))
    return made


def add_node(to: State, name: str, *gpus: Mapping[str, Any]) -> None:
    """A schedulable node."""
    to.observe_node(node(objects.node(name)))
    to.observe_device(device(objects.device(name, *gpus)))
    facts = agent_lease(objects.lease(name))
    assert facts is not None
    to.observe_lease(facts, 0.0)


def placed(on: State, raw: Mapping[str, Any], name: str) -> Placement:
    """Where the pod would be placed on the node."""
    asked = request(raw)
    assert asked is not None
    found = place(on.fleet, asked, on.fleet.row_of(name))
    assert isinstance(found, Placement)
    return found


def bind(on: State, raw: Mapping[str, Any], name: str) -> None:
    """As the watch reports the pod, bound to the node by this scheduler."""
    annotations = dict(annotations_of(placed(on, raw, name)))
    metadata = {**raw["metadata"], "annotations": annotations}
    spec = {**raw["spec"], "nodeName": name}
    on.observe_pod(translate({**raw, "metadata": metadata, "spec": spec}))


def names(nodes: int) -> list[str]:
    return [f"n{number}" for number in range(nodes)]


def loads(answer: bytes) -> dict[str, Any]:
    found = json.loads(answer)
    assert isinstance(found, dict)
    return found
