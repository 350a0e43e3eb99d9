"""The client of the API server: its requests, and its result for each kind of answer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from gpuslice.kube.access import Access
from gpuslice.kube.client import IGNORE, METADATA_ONLY, Kube
from gpuslice.kube.errors import NO_ANSWER, UNREACHABLE, KubeError
from tests.kube import api_server
from tests.kube.api_server import client_of, event, json, lines, listed, refuse, serving, stream


@pytest.mark.parametrize("by_proxy", [False, True])
async def test_a_write_carries_its_body_its_deadline_and_the_credentials(by_proxy: bool) -> None:
    seen: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((request.method, request.path, dict(request.query), await request.json()))
        named = ("Authorization", "Accept", "Content-Type")
        secret, accepted, kind = (request.headers.getall(name) for name in named)
        assert (secret, accepted) == (["Bearer secret"], ["application/json"])
        merged = "merge-patch+" if request.method == "PATCH" else ""
        assert kind == [f"application/{merged}json"]
        assert not by_proxy or request.headers["Host"] == "api.example:6443"
        return json({"kind": "Status"}, 201)

    async with serving(answer) as found:
        through = replace(found, server="http://api.example:6443", proxy=found.server)
        async with Kube(through if by_proxy else found) as kube:
            done = {"kind": "Status"}
            assert await kube.post("/p", {"a": 1}, timeout_s=20) == done
            assert await kube.patch("/p", {"b": None}, fieldManager="x y") == done
            assert await kube.post("/p", {}, fieldValidation=IGNORE) == done
    assert seen == [
        ("POST", "/p", {"timeout": "20.000s"}, {"a": 1}),
        ("PATCH", "/p", {"timeout": "10.000s", "fieldManager": "x y"}, {"b": None}),
        ("POST", "/p", {"timeout": "10.000s", "fieldValidation": "Ignore"}, {}),
    ]


@pytest.mark.parametrize("code", [404, 409, 500])
async def test_a_refusal_has_the_servers_reason_and_message(code: int) -> None:
    async def answer(request: web.Request) -> web.Response:
        return refuse(code, "Because", "of this")

    async with client_of(answer) as kube:
        with pytest.raises(KubeError, match="Because: of this") as raised:
            await kube.post("/p", {})
        assert (raised.value.status, raised.value.reason) == (code, "Because")


async def test_an_answer_of_something_before_the_server_is_an_error_with_its_text() -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.Response(text="<html>hello")
        return web.Response(text="<html>Bad Gateway", status=502)

    async with client_of(answer) as kube:
        with pytest.raises(KubeError, match="HTTP 502: <html>Bad Gateway"):
            await kube.post("/p", {})
        with pytest.raises(KubeError, match="not JSON") as raised:
            await kube.get("/p")
        assert raised.value.reason == NO_ANSWER


async def test_a_missing_object_is_distinct_from_no_answer() -> None:
    hang = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/reset":
            api_server.abort(request)
        else:
            await hang.wait()
        return json({})

    async def reason(kube: Kube, path: str) -> str:
        with pytest.raises(KubeError) as raised:
            await kube.post(path, {}, timeout_s=2.0)
        return raised.value.reason

    async with client_of(answer) as kube:
        assert [await reason(kube, path) for path in ("/reset", "/hang")] == [NO_ANSWER] * 2
        hang.set()
    async with Kube(Access("http://127.0.0.1:1")) as refused:
        assert await reason(refused, "/p") == UNREACHABLE


async def test_a_post_is_sent_once_though_the_connection_breaks() -> None:
    seen = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.method)
        if len(seen) > 1:
            api_server.abort(request)
        return json({})

    async with client_of(answer) as kube:
        await kube.get("/p")
        for write in (kube.post("/p", {}), kube.patch("/p", {})):
            with pytest.raises(KubeError):
                await write
    assert seen == ["GET", "POST", "PATCH"]


async def test_a_cancelled_write_leaves_no_connection_to_its_answer() -> None:
    arrived = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/slow":
            arrived.set()
            await asyncio.sleep(0.1)
        return json({"path": request.path})

    async with client_of(answer) as kube:
        await kube.post("/p", {})
        writing = asyncio.create_task(kube.post("/slow", {}))
        await arrived.wait()
        writing.cancel()
        for _ in range(3):
            assert await kube.post("/p", {}) == {"path": "/p"}
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_the_server_is_the_one_that_its_certificate_names(host: str, tmp_path: Path) -> None:
    """The certificate must name the server's address, or another name if one is configured."""
    made, context = api_server.certificate_for(tmp_path, host)

    async def answer(request: web.Request) -> web.Response:
        return json({})

    async with serving(answer, context, host) as found:
        for name in ("", "api.example"):
            access = replace(found, ca_file=str(made), server_name=name)
            async with Kube(access) as kube:
                assert await kube.post("/p", {}) == {}
        async with Kube(replace(access, server_name="other.example")) as kube:
            with pytest.raises(KubeError, match="CERTIFICATE_VERIFY_FAILED") as raised:
                await kube.post("/p", {})
            assert raised.value.reason == UNREACHABLE


async def test_a_list_comes_in_pages_of_metadata_alone_on_request() -> None:
    seen = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((dict(request.query), request.headers["Accept"]))
        if "continue" in request.query:
            return listed({"n": 3}, version="7")
        return listed({"n": 1}, {"n": 2}, version="7", more="a/b")

    async with client_of(answer) as kube:
        found = [each async for each in kube.list("/p", only=METADATA_ONLY, page=2)]
        assert found == [([{"n": 1}, {"n": 2}], "7"), ([{"n": 3}], "7")]
    accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
    assert seen == [({"limit": "2"}, accept), ({"limit": "2", "continue": "a/b"}, accept)]


async def test_a_watch_is_the_same_in_whatever_pieces_it_comes() -> None:
    events = [event("ADDED", {"n": n, "text": "x" * n}, str(n)) for n in (1, 2000, 200_000)]
    whole = lines(*events)

    async def answer(request: web.Request) -> web.StreamResponse:
        size = int(request.query["size"])
        return await stream(request, *(whole[i : i + size] for i in range(0, len(whole), size)))

    async with client_of(answer) as kube:
        for size in (7919, 65536, len(whole)):
            batches = [each async for each in kube.watch("/p", "1", size=size)]
            assert batches[0] == ()
            assert [each for batch in batches for each in batch] == events


@pytest.mark.parametrize("as_event", [True, False])
async def test_an_expired_resource_version_is_an_error_410(as_event: bool) -> None:
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}

    async def answer(request: web.Request) -> web.StreamResponse:
        if as_event:
            return await stream(request, orjson.dumps({"type": "ERROR", "object": gone}) + b"\n")
        return json(gone, 410)

    async with client_of(answer) as kube:
        with pytest.raises(KubeError, match="Expired: too old") as raised:
            async for _ in kube.watch("/p", "1"):
                pass
        assert raised.value.status == 410


async def test_a_watch_without_events_for_too_long_times_out() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await stream(request, lines(event("ADDED", {}, "2")), hold=True)

    async with serving(answer) as found, Kube(found, watch_idle_s=3) as kube:
        seen: list[Any] = []
        with pytest.raises(KubeError) as raised:
            async for batch in kube.watch("/p", "1"):
                seen += batch
        assert (raised.value.reason, len(seen)) == (NO_ANSWER, 1)
