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

from gpuslice.kube.client import Kube
from scheduler.binder import Binder
from scheduler.decisions.verbs import Verbs
from scheduler.extender import NOT_SYNCED, Extender
from scheduler.metrics import Metrics
from tests.scheduler import calls, objects
from tests.scheduler.lease_guards import ManualLeaseGuard
from tests.scheduler.pod_server import PodServer
from tests.support import until_async

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
FILTER = calls.arguments(calls.pod("p"), calls.names(2))
POD = calls.pod()
BODY = calls.arguments(POD, calls.names(2))
BIND = calls.binding(calls.pod("p"), "n0")
"""The API server does not have the pod."""


def post(verb: str, body: bytes) -> bytes:
    head = f"POST /{verb} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def status(reader: asyncio.StreamReader) -> int:
    """Reads one whole answer."""
    async with asyncio.timeout(60):
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
    return int(head.split()[1])


class Client:
    """An extender over HTTP: `post(verb, body)` returns the status and the answer."""

    def __init__(self, server: PodServer, guard: ManualLeaseGuard) -> None:
        self.server = server
        self.guard = guard
        self.is_synced = True
        self.metrics = Metrics()
        self.state = calls.state(nodes=2, gpus=1)
        self.verbs = Verbs(self.state)
        self.url = ""
        self.runner: web.AppRunner
        self.extender: Extender

    async def ask(self, verb: str, body: bytes, method: str = "POST") -> tuple[int, Any]:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, f"{self.url}/{verb}", data=io.BytesIO(body)) as response,
        ):
            said = await response.read()
            return response.status, calls.loads(said) if said[:1] == b"{" else said

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        host, port = self.runner.addresses[0][:2]
        reader, writer = await asyncio.open_connection(host, port)
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
    client = Client(PodServer(calls.pod()), ManualLeaseGuard())
    async with client.server.serving() as access, Kube(access) as kube:
        binder = Binder(client.state, kube, client.guard, client.verbs)
        extender = Extender(
            client.verbs, binder, client.guard, lambda: client.is_synced, client.metrics
        )
        client.extender = extender
        runner = await extender.serve("127.0.0.1", 0)
        client.runner, (host, port) = runner, runner.addresses[0][:2]
        client.url = f"http://{host}:{port}"
        try:
            yield client
        finally:
            await runner.cleanup()


async def test_a_pod_goes_through_the_verbs_to_its_gpu(client: Client) -> None:
    assert await client.ask("filter", BODY) == (200, {"NodeNames": ["n0", "n1"]})
    status, scores = await client.ask("prioritize", BODY)
    assert (status, scores[:16]) == (200, b'[{"Host":"n0","S')
    assert await client.ask("bind", calls.binding(POD, "n1")) == (200, {"Error": ""})
    (binding,) = client.server.bindings
    assert binding["target"]["name"] == "n1"
    counted = [client.counted(verb, "answered") for verb in ("filter", "prioritize", "bind")]
    assert counted == [1, 1, 1]
    assert client.guard.admitted == 2


async def test_before_the_cache_has_synced_each_verb_returns_an_error(client: Client) -> None:
    """Never an empty success, which kube-scheduler would read as "no node fits" or "all fit"."""
    client.is_synced = False
    for verb in ("filter", "prioritize"):
        assert await client.ask(verb, BODY) == (200, {"Error": NOT_SYNCED})
        assert client.counted(verb, "error") == 1
    said = await client.ask("bind", calls.binding(POD, "n1"))
    assert (said, client.server.bindings) == ((200, {"Error": NOT_SYNCED}), [])


async def test_on_standby_it_names_the_process_that_may_bind(client: Client) -> None:
    client.guard.is_open = False
    answer = (200, {"Error": "another replica holds the Lease: pod-7"})
    assert await client.ask("filter", BODY) == answer
    assert await client.ask("bind", calls.binding(POD, "n1")) == answer
    assert client.server.bindings == []


async def test_preempt_names_the_nodes_where_victims_free_a_gpu(client: Client) -> None:
    victims = {"n1": ["busy"]}
    answer = {"NodeNameToMetaVictims": calls.metas(victims)}
    body = calls.preemption(POD, {**victims, "unknown": ["busy"]})
    assert await client.ask("preempt", body) == (200, answer)
    assert client.counted("preempt", "answered") == 1
    assert client.guard.admitted == 1


async def test_an_error_of_preempt_has_an_http_status_of_its_own(client: Client) -> None:
    """kube-scheduler reads no error from the body: an answer without nodes means that no victims
    were found."""
    body = calls.preemption(POD, {"n1": ["busy"]})
    client.guard.is_open = False
    said = {"Error": "another replica holds the Lease: pod-7"}
    assert await client.ask("preempt", body) == (503, said)
    client.is_synced = False
    assert await client.ask("preempt", body) == (503, {"Error": NOT_SYNCED})
    client.is_synced = client.guard.is_open = True
    status, answer = await client.ask("preempt", calls.arguments(POD, ["n1"]))
    assert (status, answer["Error"][:22]) == (503, "NodeNameToMetaVictims:")
    assert client.counted("preempt", "error") == 3


async def test_a_failed_bind_has_its_reason_and_is_logged(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await client.ask("filter", BODY)
    client.server.pods.clear()
    answer = await client.ask("bind", calls.binding(POD, "n1"))
    assert answer == (200, {"Error": "NotFound: pods not found"})
    assert client.counted("bind", "error") == 1
    (line,) = [
        record.getMessage() for record in caplog.records if record.name == "scheduler.extender"
    ]
    assert line == 'not bound pod=default/pod-u-1 node=n1 error="NotFound: pods not found"'


@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind"])
async def test_what_is_no_call_is_an_error_of_the_verb(client: Client, verb: str) -> None:
    status, answer = await client.ask(verb, b"{")
    assert (status, answer["Error"][:18]) == (200, "body: must be JSON")


async def test_a_fault_of_ours_is_an_error_of_the_verb(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> bool:
        raise ZeroDivisionError("so")

    monkeypatch.setattr("scheduler.decisions.verbs.feasible", fail)
    answer = await client.ask("filter", BODY)
    assert answer == (200, {"Error": "gpuslice failed: ZeroDivisionError('so')"})
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None


@pytest.mark.parametrize(
    ("method", "verb", "answer"),
    [
        ("POST", "permit", (404, b"path: must be one of /filter, /prioritize, /preempt, /bind\n")),
        ("POST", "", (404, b"path: must be one of /filter, /prioritize, /preempt, /bind\n")),
        ("GET", "permit", (404, b"path: must be one of /filter, /prioritize, /preempt, /bind\n")),
        ("GET", "filter", (405, b"method: must be POST\n")),
    ],
)
async def test_there_are_four_verbs(
    client: Client, method: str, verb: str, answer: tuple[int, bytes]
) -> None:
    assert await client.ask(verb, b"", method) == answer


async def test_a_call_may_be_large(client: Client) -> None:
    """Fifty thousand nodes, and the largest pod."""
    large = calls.pod("u-1", objects.container("main"), annotations={"note": "x" * 250_000})
    among = [f"ip-10-0-0-{number}.eu-west-1.compute.internal" for number in range(50_000)]
    status, answer = await client.ask("filter", calls.arguments(large, among))
    assert (status, answer) == (200, {"NodeNames": among})


async def test_a_larger_call_is_refused(client: Client) -> None:
    status, _ = await client.ask("filter", b" " * ((64 << 20) + 1))
    assert status == 413


async def test_a_connection_is_kept_for_the_next_call(client: Client) -> None:
    async with client.connection() as (reader, writer):
        for verb in ("filter", "prioritize", "permit", "filter"):
            writer.write(post(verb, FILTER))
            assert await status(reader) == (404 if verb == "permit" else 200)


async def test_a_caller_that_does_not_send_the_rest_delays_no_other(
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scheduler.extender.BODY_S", 0.2)
    async with client.connection() as (reader, writer):
        writer.write(post("filter", FILTER)[:-1])
        assert (await client.ask("filter", FILTER))[0] == 200
        assert await status(reader) == 408


async def test_a_call_is_completed_though_its_caller_disconnects(client: Client) -> None:
    client.guard.resumed = asyncio.Event()
    async with client.connection() as (_, writer):
        writer.write(post("bind", BIND))
        await until_async(lambda: client.guard.admitted)
    await asyncio.sleep(0.1)
    assert client.counted("bind", "error") == 0
    client.guard.resumed.set()
    await until_async(lambda: client.counted("bind", "error") == 1)


async def test_a_shutdown_answers_the_calls_under_way_and_accepts_no_other(client: Client) -> None:
    async with client.connection() as (reader, writer):
        client.guard.resumed = asyncio.Event()
        writer.write(post("bind", BIND))
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
        await client.extender.serve(*client.runner.addresses[0][:2])
