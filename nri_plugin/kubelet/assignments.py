"""Which pods have whole GPUs, by the kubelet: its PodResources API, and its record on disk.

The API lists running pods without their init containers. After a restart the kubelet lists no pod
until the API server answered it. The record has both, and pods that are gone; gpu_modes.py combines
the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import grpc.aio

from gpuslice.contract import names
from nri_plugin.host import device_plugins
from nri_plugin.messages import podresources_pb2 as api
from nri_plugin.policy.gpu_modes import Assigned

LIST: Final = "/v1.PodResourcesLister/List"
SOCKET: Final = "pod-resources/kubelet.sock"
_ANSWER_S: Final = 5.0
_MAX_BYTES: Final = 64 << 20
_REPLICA: Final = "::"
"""Separates the UUID from the number of a time slice in NVIDIA's IDs."""


async def read(kubelet_dir: Path, device_plugin_dir: Path) -> Assigned:
    """Raises grpc.RpcError if the kubelet does not answer, and device_plugins.RecordError."""
    record = await asyncio.to_thread(partial(device_plugins.read_record, device_plugin_dir))
    options = [("grpc.max_receive_message_length", _MAX_BYTES)]
    async with grpc.aio.insecure_channel(f"unix:{kubelet_dir / SOCKET}", options) as channel:
        ask = channel.unary_unary(
            LIST,
            request_serializer=api.ListPodResourcesRequest.SerializeToString,
            response_deserializer=api.ListPodResourcesResponse.FromString,
        )
        listed = await ask(api.ListPodResourcesRequest(), timeout=_ANSWER_S)
    return Assigned(dict(_pods(listed)), device_plugins.holders(record))


def _pods(listed: api.ListPodResourcesResponse) -> Iterator[tuple[str, str]]:
    for pod in listed.pod_resources:
        for container in pod.containers:
            for device in container.devices:
                if device.resource_name == names.RESOURCE_NVIDIA_GPU:
                    for each in device.device_ids:
                        yield each.partition(_REPLICA)[0], f"{pod.namespace}/{pod.name}"
