"""Nodes with GPUs as Kubernetes objects: Node, Device, and the agent's Lease.

This module has their properties and their JSON, and needs no server. fleet.py creates them at an
API server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpuslice.contract import names

Json = dict[str, Any]

_SHARERS: Final = 100
"""The number that Koordinator adds for each GPU to a node's total of `gpu.shared`."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. numa: its NUMA node. root: its PCIe root complex."""

    uuid: str
    minor: int
    memory_bytes: int
    numa: int = 0
    root: str = "pci0000:00"


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    gpus: tuple[Gpu, ...]
    cpu: str = "64"
    memory: str = "512Gi"
    pods: int = 250


@dataclass(frozen=True, slots=True)
class Shape:
    """The number of nodes in a fleet, and their properties, which are equal."""

    nodes: int
    gpus: int = 8
    memory_bytes: int = 80 << 30
    """Memory of one GPU."""
    prefix: str = "node-"
    """Prefix of the nodes' names. Two fleets of one cluster need different prefixes."""

    def node_names(self) -> Sequence[str]:
        return [f"{self.prefix}{number:04}" for number in range(self.nodes)]

    def all_nodes(self) -> Sequence[Node]:
        return [self._node(number, name) for number, name in enumerate(self.node_names())]

    def _node(self, number: int, name: str) -> Node:
        gpus = tuple(
            Gpu(
                gpu_uuid(number, minor),
                minor,
                self.memory_bytes,
                numa=2 * minor // self.gpus,
                root=f"pci0000:{minor:02x}",
            )
            for minor in range(self.gpus)
        )
        return Node(name, gpus)


def gpu_uuid(node: int, minor: int) -> str:
    return f"GPU-{node:08x}-{minor:04x}-4000-8000-{0:012x}"


def node_json(node: Node) -> Json:
    """Return a Ready Node with an agent that enforces limits, and the totals of its GPUs."""
    percent = str(100 * len(node.gpus))
    totals = {
        "cpu": node.cpu,
        "memory": node.memory,
        "pods": str(node.pods),
        names.RESOURCE_GPU: percent,
        names.RESOURCE_CORE: percent,
        names.RESOURCE_MEMORY_RATIO: percent,
        names.RESOURCE_MEMORY: str(sum(gpu.memory_bytes for gpu in node.gpus)),
        names.RESOURCE_SHARED: str(_SHARERS * len(node.gpus)),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name,
            "labels": {
                "kubernetes.io/hostname": node.name,
                names.LABEL_ISOLATION_PROVIDER: names.ISOLATION_PROVIDER,
            },
        },
        "status": {
            "capacity": totals,
            "allocatable": totals,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def device_json(node: Node, node_uid: str) -> Json:
    """Return the inventory. It is valid only for the Node with that UID."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node_uid}
    return {
        "apiVersion": names.DEVICE_API_VERSION,
        "kind": names.DEVICE_KIND,
        "metadata": {"name": node.name, "ownerReferences": [owner]},
        "spec": {"devices": [_gpu_json(gpu) for gpu in node.gpus]},
    }


def slice_json(node: Node) -> Json:
    """Return the GPUs as an agent publishes them on a node that serves claims."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node.name}-{names.DRA_DRIVER}"},
        "spec": {
            "driver": names.DRA_DRIVER,
            "nodeName": node.name,
            "pool": {"name": node.name, "generation": 1, "resourceSliceCount": 1},
            "devices": [_device_json(gpu) for gpu in node.gpus],
        },
    }


def _device_json(gpu: Gpu) -> Json:
    memory = f"{gpu.memory_bytes // names.CAPACITY_MEMORY_STEP}Mi"
    capacity = {
        names.CAPACITY_MEMORY: _capacity(memory, "1Mi", "1Mi"),
        names.CAPACITY_CORE: _capacity("100", "0", "1"),
    }
    return {
        "name": f"gpu-{gpu.minor}",
        "allowMultipleAllocations": True,
        "attributes": {
            names.ATTRIBUTE_UUID: {"string": gpu.uuid},
            names.ATTRIBUTE_MINOR: {"int": gpu.minor},
        },
        "capacity": capacity,
    }


def _capacity(most: str, least: str, step: str) -> Json:
    valid = {"min": least, "max": most, "step": step}
    return {"value": most, "requestPolicy": {"default": most, "validRange": valid}}


def _gpu_json(gpu: Gpu) -> Json:
    return {
        "type": names.DEVICE_TYPE_GPU,
        "id": gpu.uuid,
        "minor": gpu.minor,
        "health": True,
        "labels": {},
        "resources": {
            names.RESOURCE_CORE: "100",
            names.RESOURCE_MEMORY: str(gpu.memory_bytes),
            names.RESOURCE_MEMORY_RATIO: "100",
        },
        "topology": {"socketID": -1, "nodeID": gpu.numa, "pcieID": gpu.root},
    }


def lease_json(node: str, renewed: str, ready: str = "true") -> Json:
    """Return the agent's Lease. renewed: a time from `now`. ready: "true", or why not."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "namespace": names.NAMESPACE,
            "name": f"{names.LEASE_AGENT_PREFIX}{node}",
            "annotations": {names.ANNOTATION_READY: ready},
        },
        "spec": {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": renewed},
    }
