"""The kubelet's device plugin API for whole GPUs: serves the kubelet's calls, and registers.

whole_gpus.py lists the GPUs and decides about allocations, on the event loop. After the plugin has
registered, the kubelet connects to the plugin's socket and receives the device lists in one stream.
When this stream ends, the kubelet drops the registration. A starting kubelet removes all sockets.
Source: k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/plugin/v1beta1.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from gpuslice.contract import names
from gpuslice.kube.log_lines import Line
from nri_plugin.claims.plugin import unary
from nri_plugin.host.device_plugins import KUBELETS_OWN
from nri_plugin.messages import deviceplugin_pb2 as api

_LOG: Final = logging.getLogger(__name__)

VERSION: Final = "v1beta1"
PLUGIN_SERVICE: Final = "v1beta1.DevicePlugin"
REGISTER: Final = "/v1beta1.Registration/Register"
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"
_ANSWER_S: Final = 5.0
_STOP_S: Final = 0.5
_OPTIONS: Final = api.DevicePluginOptions(get_preferred_allocation_available=True)


@dataclass(eq=False)
class DevicePlugin:
    """The plugin's gRPC server. allocate: holds GPUs, and returns why it cannot, or "". prefer:
    chooses GPUs from the arguments `available`, `required` and their count."""

    directory: Path
    allocate: Callable[[Sequence[str]], str]
    prefer: Callable[[Sequence[str], Sequence[str], int], Sequence[str]]
    _devices: api.ListAndWatchResponse = field(default_factory=api.ListAndWatchResponse)
    _streams: set[asyncio.Event] = field(default_factory=set)
    _server: Any = None

    def __post_init__(self) -> None:
        self._socket = self.directory / names.DEVICE_PLUGIN_SOCKET

    @property
    def connected(self) -> bool:
        """Whether the kubelet has a stream of device lists, and the plugin's socket exists."""
        return bool(self._streams) and self._socket.exists()

    def show(self, devices: Sequence[api.Device]) -> None:
        """Send the list to the kubelet if it differs from the last list sent."""
        response = api.ListAndWatchResponse(devices=devices)
        if response != self._devices:
            self._devices = response
            for changed in self._streams:
                changed.set()

    async def register(self) -> None:
        """Restart the server, and register it with the kubelet. The old stream must end first,
        because its end would drop the new registration. Raises OSError and grpc.RpcError."""
        await self.stop()
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((self._handlers(),))
        try:
            self._server.add_insecure_port(f"unix:{self._socket}")
        except RuntimeError as error:
            raise OSError(str(error)) from error
        await self._server.start()
        request = api.RegisterRequest(
            version=VERSION,
            endpoint=names.DEVICE_PLUGIN_SOCKET,
            resource_name=names.RESOURCE_NVIDIA_GPU,
            options=_OPTIONS,
        )
        async with grpc.aio.insecure_channel(f"unix:{self.directory / KUBELETS_OWN}") as channel:
            register = channel.unary_unary(
                REGISTER,
                request_serializer=api.RegisterRequest.SerializeToString,
                response_deserializer=api.Empty.FromString,
            )
            await register(request, timeout=_ANSWER_S)
        _LOG.info(Line("registered with the kubelet", resource=names.RESOURCE_NVIDIA_GPU))

    async def stop(self) -> None:
        """Stop the server with its streams, and remove the socket. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(_STOP_S)
        self._streams.clear()
        with contextlib.suppress(OSError):
            self._socket.unlink(missing_ok=True)

    def _handlers(self) -> Any:
        handlers = {
            "GetDevicePluginOptions": unary(self._options, api.Empty),
            "GetPreferredAllocation": unary(self._prefer, api.PreferredAllocationRequest),
            "Allocate": unary(self._allocate, api.AllocateRequest),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self._list_and_watch,
                request_deserializer=api.Empty.FromString,
                response_serializer=api.ListAndWatchResponse.SerializeToString,
            ),
        }
        return grpc.method_handlers_generic_handler(PLUGIN_SERVICE, handlers)

    async def _options(self, _request: api.Empty, _context: Any) -> api.DevicePluginOptions:
        return _OPTIONS

    async def _list_and_watch(
        self, _request: api.Empty, _context: Any
    ) -> AsyncIterator[api.ListAndWatchResponse]:
        changed = asyncio.Event()
        self._streams.add(changed)
        try:
            while True:
                changed.clear()
                yield self._devices
                await changed.wait()
        finally:
            self._streams.discard(changed)

    async def _prefer(
        self, request: api.PreferredAllocationRequest, _context: Any
    ) -> api.PreferredAllocationResponse:
        response = api.PreferredAllocationResponse()
        for each in request.container_requests:
            chosen = self.prefer(
                each.available_deviceIDs, each.must_include_deviceIDs, each.allocation_size
            )
            response.container_responses.add(deviceIDs=chosen)
        return response

    async def _allocate(self, request: api.AllocateRequest, context: Any) -> api.AllocateResponse:
        """Allocate for all containers of the request at once, before any other task runs."""
        uuids = [uuid for each in request.container_requests for uuid in each.devices_ids]
        refusal = self.allocate(uuids)
        if refusal:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal)
        response = api.AllocateResponse()
        for each in request.container_requests:
            response.container_responses.add(
                # Override this variable, which an image may set to `all`. NVIDIA's runtime, where
                # it is the default, would then inject every GPU.
                envs={names.ENV_VISIBLE_DEVICES: names.VISIBLE_DEVICES_NONE},
                cdi_devices=[
                    api.CDIDevice(name=f"{names.CDI_KIND}={uuid}") for uuid in each.devices_ids
                ],
            )
        return response
