"""A node at a real API server for tests of the agent: its objects, its GPUs, its pods."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from gpuslice.contract import allocation, names
from gpuslice.contract.dialects import KOORDINATOR, NODE_RESOURCES
from nri_plugin.policy import ledger
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Pod, Share
from scheduler.kubernetes import translate
from tests.cluster.admission import scheduler_lease
from tests.cluster.server import Server
from tests.requests.pods import asking, binding, pod
from tests.simgpu.host import GIB
from tests.support import until

Json = dict[str, Any]

DEVICES = f"/apis/{names.DEVICE_API_VERSION}/{names.DEVICE_PLURAL}"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases"


class Node:
    """A node's objects, as the API server has them now."""

    def __init__(self, server: Server, name: str) -> None:
        self.name = name
        self.path = f"/api/v1/nodes/{name}"
        self._server = server

    def make(self) -> None:
        # As a kubelet's; the API server records no managers of an object that is created empty.
        metadata = {"name": self.name, "labels": {"kubernetes.io/hostname": self.name}}
        asked = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        assert self._server.ask("POST", "/api/v1/nodes", asked).done

    def get(self) -> Json:
        return self._server.ask("GET", self.path).body

    def device(self) -> Json:
        return self._server.ask("GET", f"{DEVICES}/{self.name}").body

    def lease(self) -> Json:
        return self._server.ask("GET", f"{LEASES}/agent-{self.name}").body

    def totals(self, where: str = "capacity") -> dict[str, int]:
        found = self.get().get("status", {}).get(where, {})
        return {key: int(found[key]) for key in NODE_RESOURCES if key in found}

    def ready(self) -> str:
        return str(self.lease().get("metadata", {}).get("annotations", {}).get(READY, ""))

    def have(self, totals: dict[str, int]) -> None:
        until(lambda: self.totals() == self.totals("allocatable") == totals, f"{totals}")


READY = names.ANNOTATION_READY


def of_gpus(*memory_bytes: int) -> dict[str, int]:
    parts = {key: 100 * len(memory_bytes) for key in KOORDINATOR.node_resources}
    return {**parts, names.RESOURCE_MEMORY: sum(memory_bytes)}


class Pods:
    """Pods as users create them and the scheduler binds them."""

    def __init__(self, server: Server, scheduler: Server, namespace: str) -> None:
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._server = server
        self._scheduler = scheduler

    def bind(self, node: Node, uuid: str, minor: int, memory_bytes: int, core: int = 50) -> str:
        """The path of a pod that was bound with such an allocation."""
        path = self.make()
        written = allocated(uuid, minor, memory_bytes, core)
        writer = scheduler_lease.writer(self._server)
        self.bound(path, node, {**written, names.ANNOTATION_WRITER: writer})
        return path

    def make(self, node: str = "", annotations: Mapping[str, str] | None = None) -> str:
        """The path of a pod that requests a share, created on that node if given."""
        name = f"p-{secrets.token_hex(4)}"
        half = asking({names.RESOURCE_CORE: 50, names.RESOURCE_MEMORY_RATIO: 50})
        asked = pod(half, name=name, annotations=dict(annotations or {}))
        if node:
            asked["spec"]["nodeName"] = node
        answer = self._server.ask("POST", self._path, asked)
        assert answer.done, answer.text
        return f"{self._path}/{name}"

    def bound(self, path: str, node: Node, annotations: Mapping[str, str]) -> None:
        """Binds as the scheduler."""
        body = binding(pod_name(path), node.name, annotations)
        answer = self._scheduler.ask("POST", f"{path}/binding", body)
        assert answer.done, answer.text


def allocated(uuid: str, minor: int, memory_bytes: int, core: int = 50) -> dict[str, str]:
    """The allocation annotation."""
    resources = {
        names.RESOURCE_CORE: core,
        names.RESOURCE_MEMORY: memory_bytes,
        names.RESOURCE_MEMORY_RATIO: 50,
    }
    entry = allocation.DeviceEntry(minor, resources, uuid)
    written = allocation.encode(allocation.Allocation({names.DEVICE_TYPE_GPU: (entry,)}))
    return {names.ANNOTATION_DEVICE_ALLOCATED: written}


def pod_name(path: str) -> str:
    return path.rpartition("/")[2]


def events(server: Server, pod: str) -> list[str]:
    """The notes of the pod's events from the node's agent."""
    namespace, _, name = pod.removeprefix("/api/v1/namespaces/").partition("/pods/")
    path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
    listed = server.ask("GET", path).body["items"]
    return [
        each["note"]
        for each in listed
        if each["regarding"]["name"] == name and each["reason"] == names.EVENT_GRANT_REFUSED
    ]


def node_events(server: Server, node: Node) -> list[Json]:
    path = "/apis/events.k8s.io/v1/namespaces/default/events"
    listed = server.ask("GET", path).body["items"]
    return [each for each in listed if each["regarding"].get("name") == node.name]


def small_gpu(node: Node) -> str:
    node.have(of_gpus(8 * GIB, 4 * GIB))
    (gpu,) = (c for c in translate.device(node.device()).gpus if c.minor == 1)
    return gpu.uuid


def of_pod(
    server: Server, path: str, uuid: str, memory_bytes: int, container_id: str = "c0ffee"
) -> Hold:
    """The holding of one of the pod's containers."""
    metadata = server.ask("GET", path).body["metadata"]
    pod = Pod(metadata["uid"], metadata["namespace"], metadata["name"])
    shares = [Share(uuid, 1, memory_bytes, 50)]
    return ledger.hold(container_id, container_id, False, pod, "main", shares)
