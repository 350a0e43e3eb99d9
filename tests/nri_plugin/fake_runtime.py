"""A container runtime's side of NRI, as strict as the Go one, for tests over a real socket.

It shares only the generated messages with nri_plugin.protocol. The mux (fake_trunk.py), ttrpc and
the dialogue are implemented a second time, from the Go code's behaviour:

- A plugin that does not answer, or disconnects, is dropped. The container is created without it,
  unless a validator or (NRI 0.12.5) the failure policy forbids that. Here the runtime waits longer
  than the request timeout that it announces, because the machine may stall.
- An error status fails the request and keeps the plugin.
- NRI 0.12 calls a method per event. After an Unimplemented it only calls StateChange.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import Message

from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.messages import ttrpc_pb2
from tests.nri_plugin.fake_trunk import MESSAGE_BYTES, PLUGIN, RUNTIME, Dropped, Trunk

M = TypeVar("M", bound=Message)
Created = nri.CreateContainerResponse | None
"""The plugin's answer to a creation, or None if the container was created without the plugin."""
SYNC_CHUNK_OBJECTS = 8
_PATIENCE_S = 120.0

NOTIFICATIONS: dict[str, tuple[int, type[Message]]] = {
    "PostCreateContainer": (nri.POST_CREATE_CONTAINER, nri.StartContainerRequest),
    "StartContainer": (nri.START_CONTAINER, nri.StartContainerRequest),
    "PostStartContainer": (nri.POST_START_CONTAINER, nri.StartContainerRequest),
    "RemoveContainer": (nri.REMOVE_CONTAINER, nri.RemoveContainerRequest),
}


class RequestFailed(Exception):
    """The operation on the pod or container failed. The message is what the user sees."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class FakeRuntime:
    """The runtime's end of one plugin's connection. Make it with `connected_pair` or `accept`."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        runtime: tuple[str, str] = ("containerd", "2.4.2"),
        nri_version: tuple[int, int, int] = (0, 12, 3),
        request_timeout_s: float = 60.0,
    ) -> None:
        self.trunk = Trunk(reader, writer)
        self._name, self._version = runtime
        self._nri = nri_version
        self.request_timeout_s = request_timeout_s
        """A test may change this for later requests."""
        self._stream = -1
        self._state_change_only = nri_version < (0, 12)
        self.dropped: str | None = None
        self.events = 0
        self.policy = nri.FailurePolicy()
        self.registration = nri.RegisterPluginRequest()
        self.calls: list[str] = []
        """Names of the methods that were called, in order."""

    async def handshake(
        self, pods: Sequence[nri.PodSandbox] = (), containers: Sequence[nri.Container] = ()
    ) -> None:
        """Perform the registration, Configure and Synchronize. Raises Dropped or RequestFailed."""
        self.accept_registration(await self.receive_registration())
        await self.configure()
        await self.synchronize(pods, containers)

    async def receive_registration(self) -> int:
        stream, kind, data = await self._read_message(RUNTIME)
        request = ttrpc_pb2.Request.FromString(data)
        assert (kind, request.service) == (1, "nri.pkg.api.v1alpha1.Runtime")
        assert request.method == "RegisterPlugin"
        self.registration = nri.RegisterPluginRequest.FromString(request.payload)
        return stream

    def accept_registration(self, stream: int) -> None:
        self._write_message(RUNTIME, stream, 2, b"")

    def refuse_registration(self, stream: int, code: int, message: str) -> None:
        refusal = ttrpc_pb2.Response(status=ttrpc_pb2.Status(code=code, message=message))
        self._write_message(RUNTIME, stream, 2, refusal.SerializeToString())

    async def configure(self) -> None:
        request = nri.ConfigureRequest(runtime_name=self._name, runtime_version=self._version)
        if self._nri >= (0, 7):
            request.registration_timeout = 5000
            request.request_timeout = round(self.request_timeout_s * 1000)
        if self._nri >= (0, 12):
            request.nri_version = "v{}.{}.{}".format(*self._nri)
        reply = await self.call("Configure", request, nri.ConfigureResponse)
        known = 0x3FFF if self._nri >= (0, 10) else 0x7FF
        if reply.events & ~known:
            self.drop(f"invalid plugin events: {reply.events & ~known:#x}")
            raise Dropped(self.dropped)
        self.events = reply.events or known
        if self._nri >= (0, 12, 4):
            self.policy = reply.failure_policy

    async def synchronize(
        self, pods: Sequence[nri.PodSandbox] = (), containers: Sequence[nri.Container] = ()
    ) -> None:
        chunk = SYNC_CHUNK_OBJECTS
        while True:
            request = nri.SynchronizeRequest(
                pods=pods[:chunk],
                containers=containers[:chunk],
                more=len(pods) > chunk or len(containers) > chunk,
            )
            try:
                reply = await self.call("Synchronize", request, nri.SynchronizeResponse)
            except RequestFailed:
                self.drop("failed to synchronize")
                raise
            if not request.more:
                return
            if not reply.more:
                self.drop("plugin does not handle split sync requests")
                raise Dropped(self.dropped)
            pods, containers = pods[chunk:], containers[chunk:]

    async def create(self, pod: nri.PodSandbox, container: nri.Container) -> Created:
        """Create a container. Raises RequestFailed."""
        reply = None
        if self._subscribed(nri.CREATE_CONTAINER):
            request = nri.CreateContainerRequest(pod=pod, container=container)
            reply = await self._request("CreateContainer", request, nri.CreateContainerResponse)
        if self._subscribed(nri.VALIDATE_CONTAINER_ADJUSTMENT, or_dropped=self._nri < (0, 12, 5)):
            await self._validate(pod, container, reply)
        return reply

    async def _validate(self, pod: nri.PodSandbox, container: nri.Container, made: Created) -> None:
        request = nri.ValidateContainerAdjustmentRequest(pod=pod, container=container)
        if made is not None:
            request.adjust.CopyFrom(made.adjust)
        self.claim(request)
        method, reply = "ValidateContainerAdjustment", nri.ValidateContainerAdjustmentResponse
        try:
            verdict = await self.call(method, request, reply)
        except Dropped as error:
            raise RequestFailed(0, f"validator plugin failed: {error}") from error
        if verdict.reject:
            raise RequestFailed(0, f"validator rejected the adjustment: {verdict.reason}")

    def claim(
        self, request: nri.ValidateContainerAdjustmentRequest, plugin: str | None = None
    ) -> None:
        """Record `plugin` as the owner of every part of the adjustment without an owner, as
        result.go does. Hooks list all their owners, with commas between them. plugin: None for the
        plugin at the other end."""
        plugin = plugin or f"{self.registration.plugin_idx}-{self.registration.plugin_name}"
        owners, adjust = request.owners.owners[request.container.id], request.adjust
        for field, keys in (
            (nri.FIELD_MOUNTS, [mount.destination for mount in adjust.mounts]),
            (nri.FIELD_DEVICES, [device.path for device in adjust.linux.devices]),
            (nri.FIELD_CDI_DEVICES, [device.name for device in adjust.cdi_devices]),
            (nri.FIELD_ENV, [variable.key for variable in adjust.env]),
        ):
            for key in keys:
                if key not in owners.compound[field].owners:
                    owners.compound[field].owners[key] = plugin
        if adjust.HasField("hooks") and nri.FIELD_OCI_HOOKS not in owners.simple:
            owners.simple[nri.FIELD_OCI_HOOKS] = plugin

    async def notify(self, method: str, pod: nri.PodSandbox, container: nri.Container) -> None:
        """Send one of NOTIFICATIONS, in the form that this version of NRI uses."""
        event, request = NOTIFICATIONS[method]
        if not self._subscribed(event):
            return
        if not self._state_change_only:
            try:
                await self._request(method, request(pod=pod, container=container), nri.Empty)
                return
            except RequestFailed as error:
                if error.code != 12:
                    raise
                self._state_change_only = True
        kind = nri.Event.ValueType(event)
        change = nri.StateChangeEvent(event=kind, pod=pod, container=container)
        await self._request("StateChange", change, nri.Empty)

    async def stop(self, pod: nri.PodSandbox, container: nri.Container) -> None:
        if self._subscribed(nri.STOP_CONTAINER):
            request = nri.StopContainerRequest(pod=pod, container=container)
            await self._request("StopContainer", request, nri.StopContainerResponse)

    def _subscribed(self, event: int, *, or_dropped: bool = False) -> bool:
        return bool(self.events & (1 << (event - 1))) and (or_dropped or self.dropped is None)

    async def _request(self, method: str, request: Message, response: type[M]) -> M | None:
        """Call a method. If the answer is lost, return None or fail, as the failure policy says."""
        try:
            return await self.call(method, request, response)
        except Dropped as error:
            if self.policy.fail_request:
                raise RequestFailed(0, f"plugin failed to handle {method}: {error}") from error
            return None

    async def call(self, method: str, request: Message, response: type[M]) -> M:
        if self.dropped is not None:
            raise Dropped(self.dropped)
        stream = self.send_call(method, request.SerializeToString())
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return response.FromString(await self.receive_reply(stream))
        except TimeoutError:
            self.drop(f"{method} timed out")
            raise Dropped(f"{method} timed out") from None
        except Dropped as error:
            self.drop(str(error))
            raise

    def send_call(self, method: str, payload: bytes) -> int:
        self._stream += 2
        self.calls.append(method)
        request = ttrpc_pb2.Request(
            service="nri.pkg.api.v1alpha1.Plugin",
            method=method,
            payload=payload,
            timeout_nano=round(self.request_timeout_s * 1e9),
        )
        request.metadata.add(key="traceparent", value="00-0af7651916cd43dd8448eb211c80319c")
        self._write_message(PLUGIN, self._stream, 1, request.SerializeToString())
        return self._stream

    async def receive_reply(self, stream: int) -> bytes:
        """Return the payload of the reply on `stream`, skipping replies on abandoned streams."""
        answered = 0
        while answered != stream:
            answered, data = await self.receive_reply_frame()
            assert answered <= stream
        response = ttrpc_pb2.Response.FromString(data)
        if response.status.code:
            raise RequestFailed(response.status.code, response.status.message)
        return response.payload

    async def receive_reply_frame(self) -> tuple[int, bytes]:
        """Return the stream and the undecoded Response of the next reply."""
        stream, kind, data = await self._read_message(PLUGIN)
        assert kind == 2
        return stream, data

    def drop(self, why: str) -> None:
        if self.dropped is None:
            self.dropped = why
        self.trunk.break_off(why)

    async def close(self) -> None:
        await self.trunk.close()

    def _write_message(self, connection: int, stream: int, kind: int, data: bytes) -> None:
        assert len(data) <= MESSAGE_BYTES
        self.trunk.write(connection, struct.pack(">IIBB", len(data), stream, kind, 0) + data)

    async def _read_message(self, connection: int) -> tuple[int, int, bytes]:
        header = await self.trunk.read_full(connection, 10)
        length, stream, kind, flags = struct.unpack(">IIBB", header)
        assert length <= MESSAGE_BYTES and flags == 0
        return stream, kind, await self.trunk.read_full(connection, length)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connected_pair() -> tuple[Streams, socket.socket]:
    """Return both ends of a real socket: the runtime's, then the plugin's."""
    ours, theirs = socket.socketpair()
    return await asyncio.open_unix_connection(sock=ours), theirs
