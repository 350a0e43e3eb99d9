"""A kubelet's device manager over real sockets: registration, the plugin's calls, PodResources.

As the kubelet does, it assigns a device once, and records an assignment before the container
starts. It removes the plugins' sockets at its start. It forgets a plugin when the plugin's stream
of device lists ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from nri_plugin.host.device_plugins import RECORD, sockets
from nri_plugin.kubelet import device_plugin, whole_gpus
from nri_plugin.messages import deviceplugin_pb2 as plugins
from nri_plugin.messages import podresources_pb2 as pods


def unary(answer: Any, request: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=request.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )


class FakeKubelet:
    def __init__(self, directory: Path) -> None:
        self.root, self.plugins = directory / "kubelet", directory / "device-plugins"
        for each in (self.root / "pod-resources", self.plugins):
            each.mkdir(parents=True)
        self.registered: list[plugins.RegisterRequest] = []
        self.devices: dict[str, plugins.Device] = {}
        self.assigned: dict[str, str] = {}  # the pod by its GPU's UUID, in the kubelet's memory
        self.recorded: dict[str, list[str]] = {}  # GPUs by the pod's UID, in the kubelet's file
        self.knows_pods = True
        self._servers: list[Any] = []
        self._streams: set[asyncio.Task[None]] = set()
        self._channel: Any = None

    async def start(self) -> None:
        for path in sockets(self.plugins):
            path.unlink()
        register = {"Register": unary(self._register, plugins.RegisterRequest)}
        lists = {"List": unary(self._list, pods.ListPodResourcesRequest)}
        for path, service, handlers in (
            (self.plugins / "kubelet.sock", "v1beta1.Registration", register),
            (self.root / whole_gpus.POD_RESOURCES, "v1.PodResourcesLister", lists),
        ):
            path.unlink(missing_ok=True)
            server = grpc.aio.server()
            handler = grpc.method_handlers_generic_handler(service, handlers)
            server.add_generic_rpc_handlers((handler,))
            server.add_insecure_port(f"unix:{path}")
            await server.start()
            self._servers.append(server)

    async def stop(self) -> None:
        for task in self._streams:
            task.cancel()
        if self._channel is not None:
            await self._channel.close()
        for server in self._servers:
            await server.stop(0)
        self._servers.clear()

    def health(self) -> dict[str, bool]:
        return {uuid: each.health == "Healthy" for uuid, each in self.devices.items()}

    def healthy(self) -> list[str]:
        return [uuid for uuid, is_healthy in self.health().items() if is_healthy]

    async def admit(self, pod: str, uid: str = "") -> list[str]:
        """Allocate a GPU for a pod. Raises grpc.RpcError if the admission fails."""
        free = [uuid for uuid in self.healthy() if uuid not in self.assigned]
        chosen = await self.preferred(free, 1)
        await self.allocate(chosen)
        self.assigned |= dict.fromkeys(chosen, pod)
        self.record(uid or pod, chosen)
        return chosen

    async def preferred(self, available: list[str], count: int) -> list[str]:
        asked = plugins.PreferredAllocationRequest()
        asked.container_requests.add(available_deviceIDs=available, allocation_size=count)
        reply = plugins.PreferredAllocationResponse
        answer = await self._call("GetPreferredAllocation", asked, reply)
        return list(answer.container_responses[0].deviceIDs)

    async def allocate(self, uuids: list[str]) -> plugins.ContainerAllocateResponse:
        asked = plugins.AllocateRequest()
        asked.container_requests.add(devices_ids=uuids)
        answer = await self._call("Allocate", asked, plugins.AllocateResponse)
        response: plugins.ContainerAllocateResponse = answer.container_responses[0]
        return response

    def record(self, uid: str, uuids: list[str]) -> None:
        self.recorded[uid] = uuids
        of = {"ContainerName": "main", "ResourceName": "nvidia.com/gpu", "AllocResp": ""}
        held = self.recorded.items()
        entries = [{"PodUID": uid, **of, "DeviceIDs": {"-1": uuids}} for uid, uuids in held]
        registered = {"nvidia.com/gpu": self.healthy()}
        data = {"PodDeviceEntries": entries, "RegisteredDevices": registered}
        (self.plugins / RECORD).write_text(json.dumps({"Data": data, "Checksum": 1}))

    async def _call(self, name: str, request: Any, answer: Any) -> Any:
        method = self._channel.unary_unary(
            f"/{device_plugin.PLUGIN_SERVICE}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return await method(request, timeout=10)

    async def _register(self, request: plugins.RegisterRequest, _context: Any) -> plugins.Empty:
        self._channel = grpc.aio.insecure_channel(f"unix:{self.plugins / request.endpoint}")
        reply = plugins.DevicePluginOptions
        assert await self._call("GetDevicePluginOptions", plugins.Empty(), reply) == request.options
        self.registered.append(request)
        self._streams.add(asyncio.create_task(self._watch(self._channel)))
        return plugins.Empty()

    async def _watch(self, channel: Any) -> None:
        lists = channel.unary_stream(
            f"/{device_plugin.PLUGIN_SERVICE}/ListAndWatch",
            request_serializer=plugins.Empty.SerializeToString,
            response_deserializer=plugins.ListAndWatchResponse.FromString,
        )(plugins.Empty())
        with contextlib.suppress(grpc.RpcError):
            async for each in lists:
                self.devices = {device.ID: device for device in each.devices}
        for device in self.devices.values():
            device.health = "Unhealthy"

    async def _list(
        self, _request: pods.ListPodResourcesRequest, _context: Any
    ) -> pods.ListPodResourcesResponse:
        response = pods.ListPodResourcesResponse()
        for uuid, pod in self.assigned.items() if self.knows_pods else ():
            namespace, _, name = pod.partition("/")
            listed = response.pod_resources.add(name=name, namespace=namespace)
            container = listed.containers.add(name="main")
            container.devices.add(resource_name="nvidia.com/gpu", device_ids=[uuid])
        return response
