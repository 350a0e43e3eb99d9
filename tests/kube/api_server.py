"""An HTTP server with scripted answers, which misbehaves as no real API server can be made to.

tests/cluster tests the regular behaviour with a real API server.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from gpuslice.kube.access import Access
from gpuslice.kube.client import Kube
from lab.cluster.openssl import make_certificate

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def refuse(code: int, reason: str, message: str = "") -> web.Response:
    said = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return json({**said, "code": code, "reason": reason, "message": message}, code)


def json(body: object, code: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=code, content_type="application/json")


def listed(*items: dict[str, Any], version: str = "1", more: str = "") -> web.Response:
    metadata = {"resourceVersion": version, **({"continue": more} if more else {})}
    return json({"kind": "List", "metadata": metadata, "items": items})


def event(kind: str, raw: dict[str, Any], version: str) -> dict[str, Any]:
    metadata = {**raw.get("metadata", {}), "resourceVersion": version}
    return {"type": kind, "object": {**raw, "metadata": metadata}}


async def stream(request: web.Request, *chunks: bytes, hold: bool = False) -> web.StreamResponse:
    """Answer a watch with these bytes, then end it. hold: keep it open instead, without sending."""
    response = web.StreamResponse()
    await response.prepare(request)
    for chunk in chunks:
        await response.write(chunk)
        await asyncio.sleep(0.01)
    if hold:
        await asyncio.sleep(60)
    return response


def abort(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


def lines(*events: dict[str, Any]) -> bytes:
    return b"".join(orjson.dumps(each) + b"\n" for each in events)


def certificate_for(directory: Path, host: str) -> tuple[Path, ssl.SSLContext]:
    """Return the file of a new certificate for `host` and api.example, and a TLS context of it."""
    made, key = directory / "certificate", directory / "key"
    make_certificate(made, key, "/CN=api", f"subjectAltName=DNS:api.example,IP:{host}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    return made, context


@asynccontextmanager
async def serving(
    answer: Answer, context: ssl.SSLContext | None = None, address: str = "127.0.0.1"
) -> AsyncIterator[Access]:
    """Serve `answer` during the block. context: the TLS context, or None for plain HTTP."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request, web.BaseRequest)
        return await answer(request)  # type: ignore[arg-type]

    runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, address, 0, ssl_context=context)
    await site.start()
    try:
        port = runner.addresses[0][1]
        host = f"[{address}]" if ":" in address else address
        server = f"{'https' if context else 'http'}://{host}:{port}"
        yield Access(server, authorization="Bearer secret")
    finally:
        await runner.cleanup()


@asynccontextmanager
async def client_of(answer: Answer) -> AsyncIterator[Kube]:
    async with serving(answer) as access, Kube(access) as kube:
        yield kube
