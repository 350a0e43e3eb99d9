"""Objects of the API server and a page of the agent's metrics, as `top` and `ui` read them."""

from __future__ import annotations

from typing import Any

from gpuslice.contract import grants, names
from lab.cluster.fleet_objects import Shape, device_json, gpu_uuid, slice_json
from nri_plugin.metrics import Metrics

GIB = 1 << 30
GPU = gpu_uuid(0, 0)


def devices(nodes: int = 1, gpus: int = 2) -> list[dict[str, Any]]:
    """Return Devices of nodes with GPUs of 80 GiB each."""
    return [device_json(node, "uid") for node in Shape(nodes, gpus).all_nodes()]


def slices(nodes: int = 1, gpus: int = 2) -> list[dict[str, Any]]:
    """Return ResourceSlices of nodes with GPUs of 80 GiB each."""
    return [slice_json(node) for node in Shape(nodes, gpus).all_nodes()]


def claim(name: str, gib: int = 0, core: int = 0, *pods: str, **of: Any) -> dict[str, Any]:
    """Return a ResourceClaim that has a share of GPU 0, for these pods. gib: 0 if it is not
    allocated. of: node, pods."""
    request = {"exactly": {"deviceClassName": names.DEVICE_CLASS}}
    result = {
        "driver": names.DRA_DRIVER,
        "pool": of.get("node", "node-0000"),
        "device": "gpu-0",
        "consumedCapacity": {"memory": f"{gib}Gi", "core": str(core)},
    }
    reserved = [{"resource": "pods", "name": each} for each in of.get("pods", pods)]
    allocation = {"allocation": {"devices": {"results": [result]}}} if gib else {}
    return {
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {"devices": {"requests": [request]}},
        "status": {**allocation, "reservedFor": reserved},
    }


def claiming(name: str, *claims: str, node: str = "", why: str = "", **of: Any) -> dict[str, Any]:
    """Return a pod that has these ResourceClaims from templates, or waits for them."""
    named = [{"name": each, "resourceClaimTemplateName": "t"} for each in claims]
    made = [{"name": each, "resourceClaimName": each} for each in claims]
    condition = {"type": "PodScheduled", "status": "False", "message": why}
    status = {
        "phase": "Pending",
        "resourceClaimStatuses": made,
        "conditions": [condition],
        **of.pop("status", {}),
    }
    spec = {"schedulerName": "default-scheduler", "resourceClaims": named}
    return pod(name, node, spec=spec, status=status, **of)


def pod(name: str, node: str = "", namespace: str = "ns", **of: Any) -> dict[str, Any]:
    """Return a pod. of: annotations, labels, spec, status."""
    metadata = {key: of.get(key, {}) for key in ("annotations", "labels")}
    return {
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {"nodeName": node, "schedulerName": names.SCHEDULER_NAME, **of.get("spec", {})},
        "status": {"phase": "Running", **of.get("status", {})},
    }


def holder(name: str, gib: int, core: int, allocated: int | None = None, **of: Any) -> Any:
    """Return a pod whose container `main` holds a share of GPU 0 of node-0000. allocated: the
    allocation's core; None for no allocation."""
    granted = {"main": [grants.GpuGrant(GPU, 0, gib * GIB, core)]}
    annotations = {names.ANNOTATION_GRANTS: grants.encode(granted)}
    if allocated is not None:
        resources = f'{{"{names.RESOURCE_MEMORY}":"{gib}Gi","{names.RESOURCE_CORE}":{allocated}}}'
        text = f'{{"gpu":[{{"minor":0,"id":"{GPU}","resources":{resources}}}]}}'
        annotations[names.ANNOTATION_DEVICE_ALLOCATED] = text
    return pod(name, "node-0000", annotations=annotations, **of)


def waiting(name: str, why: str, namespace: str = "ns") -> dict[str, Any]:
    asked = {"resources": {"limits": {names.RESOURCE_CORE: 50}}}
    condition = {"type": "PodScheduled", "status": "False", "message": why}
    status = {"phase": "Pending", "conditions": [condition]}
    return pod(name, namespace=namespace, spec={"containers": [asked]}, status=status)


def agent(node: str = "node-0000", port: int = 10275) -> dict[str, Any]:
    container = {"ports": [{"name": "http", "containerPort": port}]}
    labels = {names.LABEL_NAME: names.AGENT}
    return pod("agent", node, names.NAMESPACE, labels=labels, spec={"containers": [container]})


def page(pod_name: str, used: float, throttled_s: float = 0.0, container: str = "main") -> bytes:
    """Return an agent's metrics with one container that uses GPU 0."""
    metrics, key = Metrics(), ("ns", pod_name, container, GPU)
    metrics.container_used.labels(*key).set(used)
    metrics.container_limit.labels(*key).set(20 * GIB)
    metrics.throttled.labels(*key).inc(throttled_s)
    for window, ratio in (("10s", 0.25), ("1s", 0.9)):
        metrics.share.labels(*key, window).set(ratio)
    metrics.memory_used.labels(GPU).set(used)
    return metrics.render()
