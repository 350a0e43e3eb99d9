"""The verbs over HTTP, as kube-scheduler calls them."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from scheduler.extender import NOT_SYNCED, Extender
from scheduler.metrics import Metrics
from tests.scheduler import calls, objects
from tests.scheduler.binder.scene import Scene, scene_of
from tests.support import until_async

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
POD = calls.pod()
FILTER = calls.arguments(POD, calls.names(2))
BIND = calls.binding(POD, "n1")
PREEMPT = calls.preemption(POD, {"n1": ["busy"], "unknown": ["busy"]})
UNKNOWN_POD = calls.binding(calls.pod("p"), "n0")
STANDBY = {"Error": "another replica holds the Lease: pod-7"}
PATHS = b"path: must be one of /filter, /prioritize, /preempt, /bind\n"


def post(verb: str, body: bytes) -> bytes:
    head = f"POST /{verb} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def status(reader: asyncio.StreamReader) -> int:
    """Read a whole answer, and return its status."""
    async with asyncio.timeout(60):
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
    return int(head.split()[1])


class Client:
    """An extender over HTTP: `ask(verb, body)` returns the status and the answer."""

    runner: web.ServerRunner
    address: tuple[str, int]

    def __init__(self, scene: Scene) -> None:
        self.server, self.guard = scene.server, scene.guard
        self.is_synced = True
        self.metrics = Metrics()
        of_scene = (scene.verbs, scene.binder, scene.guard)
        self.extender = Extender(*of_scene, lambda: self.is_synced, self.metrics)

    async def ask(self, verb: str, body: bytes, method: str = "POST") -> tuple[int, Any]:
        host, port = self.address
        url, data = f"http://{host}:{port}/{verb}", io.BytesIO(body)
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, data=data) as response,
        ):
            said = await response.read()
            return response.status, calls.loads(said) if said[:1] == b"{" else said

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            yield reader, writer
        finally:
            writer.close()

    def counted(self, verb: str, outcome: str) -> float | None:
        name = "gpuslice_scheduler_verb_duration_seconds_count"
        labels = {"verb": verb, "outcome": outcome}
        return self.metrics.registry.get_sample_value(name, labels)


@pytest.fixture
@asynccontextmanager
async def client() -> AsyncIterator[Client]:
    async with scene_of() as scene:
        made = Client(scene)
        made.runner = await made.extender.serve("127.0.0.1", 0)
        made.address = made.runner.addresses[0][:2]
        try:
            yield made
        finally:
            await made.runner.cleanup()


async def test_a_pod_goes_through_the_verbs_to_its_gpu(client: Client) -> None:
    assert await client.ask("filter", FILTER) == (200, {"NodeNames": ["n0", "n1"]})
    status, scores = await client.ask("prioritize", FILTER)
    assert (status, scores[:16]) == (200, b'[{"Host":"n0","S')
    assert await client.ask("bind", BIND) == (200, {"Error": ""})
    (binding,) = client.server.bindings
    assert binding["target"]["name"] == "n1"
    for verb in ("filter", "prioritize", "bind"):
        assert client.counted(verb, "answered") == 1
    assert client.guard.admitted == 2


@pytest.mark.parametrize(
    ("synced", "verbs", "said"),
    [
        (False, ("filter", "prioritize", "bind", "preempt"), {"Error": NOT_SYNCED}),
        (True, ("filter", "bind", "preempt"), STANDBY),
    ],
    ids=["not synced", "on standby"],
)
async def test_before_it_may_answer_each_verb_returns_an_error(
    client: Client, synced: bool, verbs: tuple[str, ...], said: dict[str, str]
) -> None:
    """kube-scheduler would read an empty success as "no node fits" or "all fit". The body of an
    answer to preempt cannot report an error, so the answer has status 503."""
    client.is_synced, client.guard.is_open = synced, False
    for verb in verbs:
        body = {"bind": BIND, "preempt": PREEMPT}.get(verb, FILTER)
        assert await client.ask(verb, body) == (503 if verb == "preempt" else 200, said)
        assert client.counted(verb, "error") == 1
    assert client.server.bindings == []


async def test_preempt_names_the_nodes_where_victims_free_a_gpu(client: Client) -> None:
    answer = {"NodeNameToMetaVictims": calls.metas({"n1": ["busy"]})}
    assert await client.ask("preempt", PREEMPT) == (200, answer)
    assert client.counted("preempt", "answered") == 1
    assert client.guard.admitted == 1


async def test_a_failed_bind_is_logged(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    await client.ask("filter", FILTER)
    client.server.pods.clear()
    assert await client.ask("bind", BIND) == (200, {"Error": "NotFound: pods not found"})
    assert client.counted("bind", "error") == 1
    (line,) = [each.getMessage() for each in caplog.records if each.name == "scheduler.extender"]
    assert line == 'not bound pod=default/pod-u-1 node=n1 error="NotFound: pods not found"'


@pytest.mark.parametrize(
    ("verb", "code"), [("filter", 200), ("prioritize", 200), ("bind", 200), ("preempt", 503)]
)
async def test_what_is_no_call_is_an_error(client: Client, verb: str, code: int) -> None:
    status, answer = await client.ask(verb, b"{")
    assert (status, answer["Error"][:18]) == (code, "body: must be JSON")


async def test_a_fault_of_ours_is_an_error_of_the_verb(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> bool:
        raise ZeroDivisionError("so")

    monkeypatch.setattr("scheduler.decisions.verbs.feasible", fail)
    answer = {"Error": "gpuslice failed: ZeroDivisionError('so')"}
    assert await client.ask("filter", FILTER) == (200, answer)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None


async def test_there_are_four_verbs(client: Client) -> None:
    for method, verb in (("POST", "permit"), ("POST", ""), ("GET", "permit")):
        assert await client.ask(verb, b"", method) == (404, PATHS)
    assert await client.ask("filter", b"", "GET") == (405, b"method: must be POST\n")


async def test_a_call_may_be_large_and_a_larger_one_is_refused(client: Client) -> None:
    """The call has fifty thousand nodes and the largest possible pod."""
    large = calls.pod("u-1", objects.container("main"), annotations={"note": "x" * 250_000})
    among = [f"ip-10-0-0-{number}.eu-west-1.compute.internal" for number in range(50_000)]
    assert await client.ask("filter", calls.arguments(large, among)) == (200, {"NodeNames": among})
    assert (await client.ask("filter", b" " * ((64 << 20) + 1)))[0] == 413


async def test_a_connection_is_kept_for_the_next_call(client: Client) -> None:
    async with client.connection() as (reader, writer):
        for verb in ("filter", "prioritize", "permit", "filter"):
            writer.write(post(verb, FILTER))
            assert await status(reader) == (404 if verb == "permit" else 200)


async def test_a_slow_caller_delays_no_other(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.extender.BODY_S", 0.2)
    async with client.connection() as (reader, writer):
        writer.write(post("filter", FILTER)[:-1])
        assert (await client.ask("filter", FILTER))[0] == 200
        assert await status(reader) == 408


async def test_a_call_is_completed_though_its_caller_disconnects(client: Client) -> None:
    client.guard.resumed = asyncio.Event()
    async with client.connection() as (_, writer):
        writer.write(post("bind", UNKNOWN_POD))
        await until_async(lambda: client.guard.admitted)
    await asyncio.sleep(0.1)
    assert client.counted("bind", "error") == 0
    client.guard.resumed.set()
    await until_async(lambda: client.counted("bind", "error") == 1)


async def test_a_shutdown_answers_the_calls_under_way_and_accepts_no_other(client: Client) -> None:
    async with client.connection() as (reader, writer):
        client.guard.resumed = asyncio.Event()
        writer.write(post("bind", UNKNOWN_POD))
        await until_async(lambda: client.guard.admitted)
        stopping = asyncio.create_task(client.runner.cleanup())
        await until_async(lambda: not client.runner.sites)
        with pytest.raises(OSError):
            await client.ask("filter", FILTER)
        client.guard.resumed.set()
        assert await status(reader) == 200
        await stopping


async def test_an_address_in_use_is_an_error(client: Client) -> None:
    with pytest.raises(OSError, match="address already in use"):
        await client.extender.serve(*client.address)
