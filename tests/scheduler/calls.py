"""Calls of kube-scheduler, byte for byte as Go writes them, and states for the answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gpuslice.contract import names as words
from scheduler.core.place import Placement, place
from scheduler.decisions.requeue import Unschedulable
from scheduler.decisions.state import State
from scheduler.decisions.verbs import Verbs
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


def loads(answer: bytes) -> dict[str, Any]:
    found = json.loads(answer)
    assert isinstance(found, dict)
    return found


def arguments(pod: Mapping[str, Any], names: Sequence[str]) -> bytes:
    """Return ExtenderArgs."""
    return dumps({"Pod": pod, "Nodes": None, "NodeNames": list(names)})


def preemption(
    pod: Mapping[str, Any],
    victims: Mapping[str, Sequence[str]],
    violations: Mapping[str, int] | None = None,
) -> bytes:
    """Return ExtenderPreemptionArgs. victims: the UIDs of the pods to evict, by node. violations:
    how many of them violate a PodDisruptionBudget."""
    offered = metas(victims, violations or {})
    return dumps({"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": offered})


def metas(
    victims: Mapping[str, Sequence[str]], violations: Mapping[str, int] = MappingProxyType({})
) -> dict[str, Any]:
    return {
        node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": violations.get(node, 0)}
        for node, uids in victims.items()
    }


def binding(pod: Mapping[str, Any], node_name: str) -> bytes:
    """Return ExtenderBindingArgs."""
    metadata = pod["metadata"]
    fields = {"PodName": "name", "PodNamespace": "namespace", "PodUID": "uid"}
    return dumps({**{key: metadata[of] for key, of in fields.items()}, "Node": node_name})


def pod(
    uid: str = "u-1", *containers: Mapping[str, Any], priority: int = 0, **fields: Any
) -> dict[str, Any]:
    """Return a pod with resourceVersion 1. By default, its container requests half a GPU."""
    asking = containers or (objects.container("main", core=50, ratio=50),)
    made = objects.pod(*asking, uid=uid, **fields)
    made["metadata"]["resourceVersion"] = "1"
    made["spec"] |= {"schedulerName": "gpuslice-scheduler", "priority": priority}
    return made


def names(nodes: int) -> list[str]:
    return [f"n{number}" for number in range(nodes)]


# --- states


def state(nodes: int = 2, gpus: int = 2) -> State:
    """Return a state of nodes n0, n1, ... with GPUs GPU-n0-0, GPU-n0-1, ..., all schedulable."""
    made = State()
    for name in names(nodes):
        add_node(made, name, *(objects.gpu(f"GPU-{name}-{n}", n) for n in range(gpus)))
    return made


def add_node(to: State, name: str, *gpus: Mapping[str, Any]) -> None:
    to.observe_node(node(objects.node(name)))
    to.observe_device(device(objects.device(name, *gpus)))
    facts = agent_lease(objects.lease(name))
    assert facts is not None
    to.observe_lease(facts, 0.0)


def placed(on: State, raw: Mapping[str, Any], name: str) -> Placement:
    """Return the pod's placement on the node, without holding its GPUs."""
    asked = request(raw)
    assert asked is not None
    found = place(on.fleet, asked, on.fleet.row_of(name))
    assert isinstance(found, Placement)
    return found


def bind(on: State, raw: Mapping[str, Any], name: str) -> None:
    """Let the watch report the pod as bound to the node by this scheduler."""
    metadata = {**raw["metadata"], "annotations": dict(annotations_of(placed(on, raw, name)))}
    spec = {**raw["spec"], "nodeName": name}
    on.observe_pod(translate({**raw, "metadata": metadata, "spec": spec}))


def hold(
    on: State,
    uid: str,
    name: str,
    minor: int,
    percent: int,
    priority: int = 0,
    ends: bool = False,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Let the watch report a pod that is bound to the node and holds this percentage of the GPU.
    ends: whether the pod terminates."""
    entry = (f"GPU-{name}-{minor}", minor, objects.resources(core=percent, ratio=percent))
    annotations = {words.ANNOTATION_DEVICE_ALLOCATED: objects.allocated(entry)}
    raw = pod(uid, node=name, annotations=annotations, priority=priority, labels=labels)
    if ends:
        raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    on.observe_pod(translate(raw))


# --- answers


def filtered(verbs: Verbs, raw: Mapping[str, Any], among: Sequence[str]) -> dict[str, Any]:
    return loads(verbs.filter(arguments(raw, among)))


def preempted(
    verbs: Verbs,
    raw: Mapping[str, Any],
    victims: Mapping[str, Sequence[str]],
    violations: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    answer = loads(b"".join(verbs.preempt(preemption(raw, victims, violations))))
    found = answer["NodeNameToMetaVictims"]
    assert isinstance(found, dict)
    return found


def due(queue: Unschedulable, now_s: float) -> list[str]:
    """Return the UIDs of the pods to requeue, after the queue has examined every entry."""
    while not queue.work(now_s, lambda: False):
        pass
    return [each.uid for each in queue.due()]
