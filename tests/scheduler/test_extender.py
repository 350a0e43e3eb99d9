"""The verbs over HTTP, as kube-scheduler calls them."""

from __future__ import annotations

import io
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from kube.client import Kube
from scheduler.binder import Binder
from scheduler.decisions.verbs import Verbs
from scheduler.extender import NOT_SYNCED, Extender
from scheduler.metrics import Metrics
from tests.scheduler import calls, objects
from tests.scheduler.lease_guards import ManualLeaseGuard
from tests.scheduler.pod_server import PodServer


class Source:
    synced = True


class Client:
    """An extender over HTTP: `post(verb, body)` returns the status and the answer."""

    def __init__(self, server: PodServer, guard: ManualLeaseGuard, source: Source) -> None:
        self.server = server
        self.guard = guard
        self.source = source
        self.metrics = Metrics()
        self.state = calls.state(nodes=2, gpus=1)
        self.verbs = Verbs(self.state)
        self.url = ""

    async def ask(self, verb: str, body: bytes, method: str = "POST") -> tuple[int, Any]:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, f"{self.url}/{verb}", data=io.BytesIO(body)) as response,
        ):
            said = await response.read()
            return response.status, calls.loads(said) if said[:1] == b"{" else said

    def counted(self, verb: str, outcome: str) -> float | None:
        name = "gpuslice_scheduler_verb_duration_seconds_count"
        labels = {"verb": verb, "outcome": outcome}
        return self.metrics.registry.get_sample_value(name, labels)


@asynccontextmanager
async def serving(*pods: dict[str, Any]) -> AsyncIterator[Client]:
    client = Client(PodServer(*pods), ManualLeaseGuard(), Source())
    async with client.server.serving() as access, Kube(access) as kube:
        binder = Binder(client.state, kube, client.guard, client.verbs)
        extender = Extender(client.verbs, binder, client.guard, client.source, client.metrics)
        server = await extender.serve("127.0.0.1", 0)
        host, port = server.address
        client.url = f"http://{host}:{port}"
        try:
            yield client
        finally:
            await server.close()


async def test_a_pod_goes_through_the_verbs_to_its_gpu() -> None:
    raw = calls.pod()
    async with serving(raw) as client:
        body = calls.arguments(raw, calls.names(2))
        assert await client.ask("filter", body) == (200, {"NodeNames": ["n0", "n1"]})
        status, scores = await client.ask("prioritize", body)
        assert (status, scores[:16]) == (200, b'[{"Host":"n0","S')
        assert await client.ask("bind", calls.binding(raw, "n1")) == (200, {"Error": ""})
        (binding,) = client.server.bindings
        assert binding["target"]["name"] == "n1"
        counted = [client.counted(verb, "answered") for verb in ("filter", "prioritize", "bind")]
        assert counted == [1, 1, 1]
        assert client.guard.admitted == 2


async def test_before_the_cache_has_synced_each_verb_returns_an_error() -> None:
    """Never an empty success, which kube-scheduler would read as "no node fits" or "all fit"."""
    raw = calls.pod()
    async with serving(raw) as client:
        client.source.synced = False
        body = calls.arguments(raw, calls.names(2))
        for verb in ("filter", "prioritize"):
            assert await client.ask(verb, body) == (200, {"Error": NOT_SYNCED})
            assert client.counted(verb, "error") == 1
        said = await client.ask("bind", calls.binding(raw, "n1"))
        assert (said, client.server.bindings) == ((200, {"Error": NOT_SYNCED}), [])


async def test_on_standby_it_names_the_process_that_may_bind() -> None:
    raw = calls.pod()
    async with serving(raw) as client:
        client.guard.is_open = False
        answer = (200, {"Error": "another replica holds the Lease: pod-7"})
        assert await client.ask("filter", calls.arguments(raw, calls.names(2))) == answer
        assert await client.ask("bind", calls.binding(raw, "n1")) == answer
        assert client.server.bindings == []


async def test_preempt_names_the_nodes_where_victims_free_a_gpu() -> None:
    raw, victims = calls.pod(), {"n1": ["busy"]}
    async with serving() as client:
        answer = {"NodeNameToMetaVictims": calls.metas(victims)}
        body = calls.preemption(raw, {**victims, "unknown": ["busy"]})
        assert await client.ask("preempt", body) == (200, answer)
        assert client.counted("preempt", "answered") == 1
        assert client.guard.admitted == 1


async def test_an_error_of_preempt_has_an_http_status_of_its_own() -> None:
    """kube-scheduler reads no error from the body: an answer without nodes means that no victims
    were found."""
    raw = calls.pod()
    async with serving() as client:
        body = calls.preemption(raw, {"n1": ["busy"]})
        client.guard.is_open = False
        said = {"Error": "another replica holds the Lease: pod-7"}
        assert await client.ask("preempt", body) == (503, said)
        client.source.synced = False
        assert await client.ask("preempt", body) == (503, {"Error": NOT_SYNCED})
        client.source.synced = client.guard.is_open = True
        status, answer = await client.ask("preempt", calls.arguments(raw, ["n1"]))
        assert (status, answer["Error"][:22]) == (503, "NodeNameToMetaVictims:")
        assert client.counted("preempt", "error") == 3


async def test_a_failed_bind_has_its_reason_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    raw = calls.pod()
    async with serving() as client:
        await client.ask("filter", calls.arguments(raw, calls.names(2)))
        answer = await client.ask("bind", calls.binding(raw, "n1"))
        assert answer == (200, {"Error": "NotFound: pods not found"})
        assert client.counted("bind", "error") == 1
    (line,) = [
        record.getMessage() for record in caplog.records if record.name == "scheduler.extender"
    ]
    assert line == 'not bound pod=default/pod-u-1 node=n1 error="NotFound: pods not found"'


@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind"])
async def test_what_is_no_call_is_an_error_of_the_verb(verb: str) -> None:
    async with serving() as client:
        status, answer = await client.ask(verb, b"{")
        assert (status, answer["Error"][:18]) == (200, "body: must be JSON")


async def test_a_fault_of_ours_is_an_error_of_the_verb(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> bool:
        raise ZeroDivisionError("so")

    monkeypatch.setattr("scheduler.decisions.verbs.feasible", fail)
    async with serving() as client:
        body = calls.arguments(calls.pod(), calls.names(2))
        answer = await client.ask("filter", body)
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
async def test_there_are_four_verbs(method: str, verb: str, answer: tuple[int, bytes]) -> None:
    async with serving() as client:
        assert await client.ask(verb, b"", method) == answer


async def test_a_call_may_be_large() -> None:
    """Fifty thousand nodes, and the largest pod."""
    raw = calls.pod("u-1", objects.container("main"), annotations={"note": "x" * 250_000})
    among = [f"ip-10-0-0-{number}.eu-west-1.compute.internal" for number in range(50_000)]
    async with serving(raw) as client:
        status, answer = await client.ask("filter", calls.arguments(raw, among))
        assert (status, answer) == (200, {"NodeNames": among})
