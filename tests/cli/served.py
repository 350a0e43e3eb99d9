"""An API server with the objects of objects.py, and an agent behind its port forward."""

from __future__ import annotations

import struct
from typing import Any

from aiohttp import web

from gpuslice.cli.first_lists import CLAIMS, DEVICES, SLICES
from gpuslice.contract import names
from tests.cli.objects import GIB, agent, claim, devices, page, slices
from tests.kube.api_server import Answer, listed, refuse


def served(
    *pods: Any,
    may_forward: bool = True,
    may_list: bool = True,
    body: bytes = b"",
    claimed: bool = False,
    no_claims: int = 0,
) -> Answer:
    """Return an API server with one node. body: its agent's metrics, by default those of `page`.
    claimed: the node serves claims. no_claims: the status of a list of claims."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == DEVICES:
            return refuse(404, "NotFound") if claimed else listed(*devices())
        if request.path in (SLICES, CLAIMS) and no_claims:
            return refuse(no_claims, "Forbidden")
        if request.path == SLICES:
            return listed(*(slices() if claimed else ()))
        if request.path == CLAIMS:
            return listed(claim("c", 20, 50, "p"))
        if request.path.endswith("/portforward"):
            if not may_forward:
                return refuse(403, "Forbidden", "no")
            return await _forward(request, body or page("p", 5 * GIB))
        if request.path == "/api/v1/pods" and not may_list:
            return refuse(403, "Forbidden", "no")
        if request.path.endswith(f"{names.NAMESPACE}/pods"):
            return listed(agent())
        return listed(*pods, agent())

    return answer


async def _forward(request: web.Request, body: bytes) -> web.StreamResponse:
    """Answer as the kubelet does, with the page in pieces."""
    assert request.query["ports"] == "10275"
    socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
    await socket.prepare(request)
    for channel in (0, 1):
        await socket.send_bytes(bytes((channel,)) + struct.pack("<H", 10275))
    asked = await socket.receive_bytes()
    assert asked.startswith(b"\0GET /metrics HTTP/1.0\r\n")
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    for at in range(0, len(whole), 1000):
        await socket.send_bytes(b"\0" + whole[at : at + 1000])
    await socket.close()
    return socket
