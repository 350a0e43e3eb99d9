"""A node at a real API server for tests of the agent: its objects, its GPUs, its pods."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final

from gpuslice.contract import allocation, names
from gpuslice.contract.dialects import KOORDINATOR, NODE_RESOURCES
from nri_plugin.policy import ledger
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Pod, Share
from scheduler.kubernetes import translate
from tests.cluster.admission import scheduler_lease
from tests.cluster.server import Json, Server
from tests.requests.pods import HALF, asking, binding, pod
from tests.simgpu.host import GIB
from tests.support import until

DEVICES: Final = f"/apis/{names.DEVICE_API_VERSION}/{names.DEVICE_PLURAL}"
LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases"
EVENTS: Final = "/apis/events.k8s.io/v1/namespaces"


class Node:
    """A node, its Device and the agent's Lease, read from the API server at each call."""

    def __init__(self, server: Server, name: str) -> None:
        self.name = name
        self.path = f"/api/v1/nodes/{name}"
        self.device_path = f"{DEVICES}/{name}"
        self.lease_path = f"{LEASES}/{names.LEASE_AGENT_PREFIX}{name}"
        self._server = server

    def make(self) -> None:
        # A kubelet sets this label. Without any field the object would have no managedFields.
        labels = {"kubernetes.io/hostname": self.name}
        self._server.make("/api/v1/nodes", {"metadata": {"name": self.name, "labels": labels}})

    def get(self) -> Json:
        return self._server.get(self.path)

    def device(self) -> Json:
        return self._server.get(self.device_path)

    def lease(self) -> Json:
        return self._server.get(self.lease_path)

    def ready(self) -> str:
        annotations = self.lease().get("metadata", {}).get("annotations", {})
        return str(annotations.get(names.ANNOTATION_READY, ""))

    def have(self, *memory_bytes: int) -> None:
        parts = {key: 100 * len(memory_bytes) for key in KOORDINATOR.node_resources}
        wanted = {**parts, names.RESOURCE_MEMORY: sum(memory_bytes)}

        def have() -> bool:
            status = self.get().get("status", {})
            found = (status.get(where, {}) for where in ("capacity", "allocatable"))
            return all(
                {key: int(each[key]) for key in NODE_RESOURCES if key in each} == wanted
                for each in found
            )

        until(have, f"the node has {wanted}")

    def spoil(self) -> None:
        """Set the node's capacity to zero, as a kubelet does at its start."""
        zeros = {"status": {"capacity": dict.fromkeys(KOORDINATOR.node_resources, "0")}}
        assert self._server.patch(f"{self.path}/status", zeros).done

    def small_gpu(self) -> str:
        """The UUID of the second GPU, of 4 GiB."""
        self.have(8 * GIB, 4 * GIB)
        (gpu,) = (each for each in translate.device(self.device()).gpus if each.minor == 1)
        return gpu.uuid


class Pods:
    def __init__(self, server: Server, scheduler: Server, namespace: str) -> None:
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._server = server
        self._scheduler = scheduler

    def bind(self, node: Node, uuid: str, minor: int, memory_bytes: int) -> str:
        """Bind a new pod to the node with an allocation of this GPU. Return the pod's path."""
        path, written = self.make(), allocated(uuid, minor, memory_bytes)
        writer = scheduler_lease.writer(self._server)
        self.bound(path, node, {**written, names.ANNOTATION_WRITER: writer})
        return path

    def make(self, node: str = "", annotations: Mapping[str, str] | None = None) -> str:
        """Create a pod that requests a share, and return its path. node: "" for an unbound pod."""
        name = f"p-{secrets.token_hex(4)}"
        asked = pod(asking(HALF), name=name, annotations=dict(annotations or {}))
        if node:
            asked["spec"]["nodeName"] = node
        return self._server.make(self._path, asked)

    def bound(self, path: str, node: Node, annotations: Mapping[str, str]) -> None:
        body = binding(pod_name(path), node.name, annotations)
        answer = self._scheduler.ask("POST", f"{path}/binding", body)
        assert answer.done, answer.text


def allocated(uuid: str, minor: int, memory_bytes: int, core: int = 50) -> dict[str, str]:
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


def events(server: Server, path: str) -> list[Json]:
    namespace = path.split("/")[4] if "/pods/" in path else "default"
    listed = server.get(f"{EVENTS}/{namespace}/events")["items"]
    return [each for each in listed if each["regarding"].get("name") == pod_name(path)]


def pod_of(server: Server, path: str) -> Pod:
    metadata = server.get(path)["metadata"]
    return Pod(metadata["uid"], metadata["namespace"], metadata["name"])


def hold(server: Server, path: str, uuid: str, memory_bytes: int) -> Hold:
    """Return the ledger hold of the pod's container "main", whose ID is the pod's path."""
    shares = [Share(uuid, 1, memory_bytes, 50)]
    return ledger.hold(path, path, pod_of(server, path), "main", shares)
