"""Reads one HTTP page of a pod through the API server's pods/portforward.

The API server authorises the request, and the kubelet connects to the port in the pod's network
namespace. So a server on 127.0.0.1 suffices, and no port is opened. Source: Kubernetes' package
cri/streaming/portforward. A message begins with its channel's number: 0 is data, 1 an error. The
first message of each channel is the port.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

import aiohttp

from gpuslice.kube.client import Kube
from gpuslice.kube.errors import NO_ANSWER, KubeError

_PROTOCOL: Final = "v4.channel.k8s.io"
_DATA: Final = 0
_PORT_BYTES: Final = 2
_MAX_BYTES: Final = 16 << 20
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d{1,9})\r\n", re.IGNORECASE)


async def get(
    kube: Kube, namespace: str, pod: str, port: int, page: str, timeout_s: float
) -> bytes:
    """Return the body of the page. Raises KubeError."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}/portforward"
    request = f"GET {page} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    received, failed = bytearray(), bytearray()
    async with kube.websocket(path, _PROTOCOL, timeout_s=timeout_s, ports=port) as socket:
        await socket.send_bytes(bytes((_DATA,)) + request)
        async for message in socket:
            if message.type is aiohttp.WSMsgType.BINARY and message.data:
                channel = received if message.data[0] == _DATA else failed
                channel += message.data[1:]
            if len(failed) > _PORT_BYTES:
                raise KubeError(0, NO_ANSWER, failed[_PORT_BYTES:].decode(errors="replace").strip())
            if (answer := body(received[_PORT_BYTES:])) is not None:
                return answer
    raise KubeError(0, NO_ANSWER, f"{pod}: port {port}: the answer ended too early")


def body(answer: bytes | bytearray) -> bytes | None:
    """Return the body of an HTTP answer, or None before its end. Raises KubeError."""
    head, end, content = bytes(answer).partition(b"\r\n\r\n")
    if not end:
        if len(head) > _MAX_BYTES:
            raise KubeError(0, NO_ANSWER, "not HTTP")
        return None
    length = _LENGTH.search(head + b"\r\n")
    if length is None or int(length[1]) > _MAX_BYTES or b" 200 " not in head.partition(b"\r\n")[0]:
        raise KubeError(0, NO_ANSWER, f"unexpected answer: {head[:80].decode(errors='replace')}")
    return content if len(content) >= int(length[1]) else None
