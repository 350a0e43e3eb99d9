"""When a list or a watch is retried, and with which delay.

The events between two watches: tests/scheduler/test_cache.py, tests/cluster/test_service.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from gpuslice.kube.client import Kube
from gpuslice.kube.reflector import Reflector
from tests.kube.api_server import abort, client_of, event, lines, listed, refuse, stream
from tests.support import Clock, until_async


class Names:
    """A reflector whose sink records only the objects' names."""

    def __init__(self, kube: Kube, clock: Clock) -> None:
        self.known: set[str] = set()
        self.reflector = Reflector(kube, "/p", self, clock=clock, jitter=lambda: 0.0)

    def observed(self, raw: Any) -> str:
        self.known.add(raw["metadata"]["name"])
        return str(raw["metadata"]["name"])

    def deleted(self, raw: Any) -> None:
        self.known.discard(raw["metadata"]["name"])

    def listed(self, keys: set[str]) -> None:
        self.known &= keys

    async def follow(self, done: asyncio.Event) -> None:
        following = asyncio.create_task(self.reflector.run())
        async with asyncio.timeout(60):
            await done.wait()
        following.cancel()
        await asyncio.wait({following})


@pytest.mark.parametrize("breaks", [True, False])
async def test_retry_delays_grow_until_a_watch_has_lasted_however_it_ends(breaks: bool) -> None:
    clock, waited, done = Clock(), list[float](), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return listed({"metadata": {"name": "a"}}, version="5")
        waited.append(sink.reflector.waited_s)
        if len(waited) <= 5:
            return refuse(503, "ServiceUnavailable")
        if len(waited) > 6:
            done.set()
            return await stream(request, hold=True)
        response = await stream(request)
        await until_async(lambda: not sink.reflector.problem)
        clock.seconds += 5
        if breaks:
            abort(request)
        return response

    async with client_of(answer) as kube:
        sink = Names(kube, clock)
        await sink.follow(done)
        assert sink.known == {"a"}
        assert sink.reflector.lists == 1
    assert waited == [0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 0.05 if breaks else 0.0]


async def test_a_watch_that_is_ended_for_being_behind_is_taken_up_at_once() -> None:
    """The API server ends the watch of a client that is too slow. Most events arrive at such a
    time, and a delay would increase the backlog."""
    waited, done, watch_count = list[float](), asyncio.Event(), 100

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return listed({"metadata": {"name": "a"}}, version="5")
        waited.append(sink.reflector.waited_s)
        number = int(request.query["resourceVersion"]) - 5
        if number == watch_count:
            done.set()
            return await stream(request, hold=True)
        raw = {"metadata": {"name": f"n{number}"}}
        return await stream(request, lines(event("ADDED", raw, str(number + 6))))

    async with client_of(answer) as kube:
        sink = Names(kube, Clock())
        await sink.follow(done)
        assert len(sink.known) == watch_count + 1
    assert waited == [0.0] * (watch_count + 1)
