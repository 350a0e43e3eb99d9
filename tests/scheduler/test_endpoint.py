"""The HTTP endpoint for probes, Prometheus and people."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from gpuslice.contract import names
from scheduler import endpoint as pages
from scheduler.decisions.simulate import fleet, simulate
from scheduler.decisions.state import State
from scheduler.endpoint import PAGES, Address, Endpoint, is_local
from scheduler.kubernetes import translate
from scheduler.metrics import Metrics
from tests.kube import api_server
from tests.scheduler.objects import Gi, container, device, gpu, node, pod


class Cache:
    """A cache that reports a given status."""

    synced, age_s = True, 3.0
    wrong: Sequence[str] = ()

    def problems(self) -> Sequence[str]:
        return self.wrong

    def ages(self) -> Mapping[str, float]:
        return {"pods": self.age_s}

    def lists(self) -> Mapping[str, int]:
        return {"pods": 2}


Get = Callable[[str], Coroutine[Any, Any, tuple[int, str]]]


@asynccontextmanager
async def serving(
    cache: Cache | None = None,
    state: State | None = None,
    address: Address = ("127.0.0.1", 0),
    kube_scheduler: Address = pages.KUBE_SCHEDULER,
) -> AsyncIterator[Get]:
    status = lambda: "on standby"  # noqa: E731
    endpoint = Endpoint(state or State(), cache or Cache(), Metrics(), status, kube_scheduler)
    served: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(endpoint.run(address, served.set_result))
    async with asyncio.timeout(30), aiohttp.ClientSession() as session:

        async def get(path: str) -> tuple[int, str]:
            async with session.get(f"http://{await served}{path}") as answer:
                return answer.status, await answer.text()

        yield get
    serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving


def two_nodes() -> State:
    """Return a state: n1 has a cordoned GPU and a half-held one. n2 has no inventory."""
    nodes = [{"kind": "Node", **each} for each in (node("n1", cordoned_gpus="GPU-b"), node("n2"))]
    state = fleet([*nodes, device("n1", gpu("GPU-a", 0), gpu("GPU-b", 1))])
    simulate(state, pod(container("main", ratio=50, core=30)))
    return state


async def test_the_probes_give_the_reasons_and_an_unknown_page_the_existing_ones() -> None:
    cache = Cache()
    async with serving(cache) as get:
        assert await get("/livez") == (200, "ok\n")
        assert await get("/readyz") == (200, "ok\non standby\n")
        status, text = await get("/healthz")
        assert status == 404 and all(page in text for page in PAGES)
        cache.wrong = ["nodes: cannot be listed"]
        assert await get("/readyz") == (503, "nodes: cannot be listed\non standby\n")
        cache.wrong, cache.synced = [], False
        assert (await get("/readyz"))[1].startswith("the lists of pods, nodes and GPUs are not")
        cache.synced, cache.age_s = True, 999.0
        status, text = await get("/readyz")
        assert status == 503 and "pods: no message from the API server for 999 s" in text
        assert (await get("/livez"))[0] == 200
        assert "gpuslice_scheduler_ready 0.0" in (await get("/metrics"))[1]


async def test_kube_scheduler_is_live_while_its_own_probe_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its certificate is self-signed. One that hangs accepts connections, but does not answer."""
    monkeypatch.setattr(pages, "_KUBE_SCHEDULER", aiohttp.ClientTimeout(total=20.0))
    _, context = api_server.certificate_for(tmp_path, "127.0.0.1")
    probe = {"status": 200, "wait_s": 0.0}

    async def healthz(request: web.Request) -> web.Response:
        await asyncio.sleep(probe["wait_s"])
        return web.Response(status=int(probe["status"]) if request.path == "/healthz" else 404)

    async with api_server.serving(healthz, context) as access:
        url = urlsplit(access.server)
        async with serving(kube_scheduler=(str(url.hostname), int(url.port or 0))) as get:
            assert await get("/livez/kube-scheduler") == (200, "kube-scheduler: status 200\n")
            probe["status"] = 500
            assert await get("/livez/kube-scheduler") == (503, "kube-scheduler: status 500\n")
            probe["wait_s"] = 3600.0
            monkeypatch.setattr(pages, "_KUBE_SCHEDULER", aiohttp.ClientTimeout(total=0.1))
            assert await get("/livez/kube-scheduler") == (503, "kube-scheduler: TimeoutError\n")
            assert await get("/livez") == (200, "ok\n")


async def test_the_numbers_are_the_states_of_a_second_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    state = two_nodes()
    async with serving(state=state) as get:

        async def values() -> dict[str, float]:
            lines = (await get("/metrics"))[1].splitlines()
            found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
            return {name[19:]: float(value) for name, value in found.items()}

        for _ in range(2):
            assert {
                'nodes{reason="FITS"}': 1,
                'nodes{reason="NO_DEVICE"}': 1,
                'gpus{state="usable"}': 1,
                'gpus{state="unusable"}': 1,
                'gpu_memory_bytes{state="total"}': 48 * Gi,
                'gpu_memory_bytes{state="granted"}': 12 * Gi,
                'gpu_memory_bytes{state="free"}': 12 * Gi,
                "largest_free_slice_bytes": 12 * Gi,
                "gpu_core_granted_ratio": 0.15,
                "assumed_pods": 1,
                'lists_total{kind="pods"}': 2,
                'watch_age_seconds{kind="pods"}': 3,
                "ready": 1,
            }.items() <= (await values()).items()
        for name in ("n1", "n2"):
            state.remove_node(name)
        assert 'nodes{reason="FITS"}' in await values()
        monkeypatch.setattr(pages, "_FRESH_S", 0.0)
        empty = await values()
        assert empty["largest_free_slice_bytes"] == empty["gpu_core_granted_ratio"] == 0
        assert not any(name.startswith("nodes") for name in empty)


async def test_the_fleet_has_each_gpu_its_holders_and_the_problems() -> None:
    state = two_nodes()
    simulate(state, pod(container("main", ratio=50)), 1)
    annotations = {names.ANNOTATION_DEVICE_ALLOCATED: "{"}
    asks = pod(container("main", ratio=50), node="n2", annotations=annotations)
    state.observe_pod(translate.pod(asks))
    async with serving(state=state) as get:
        whole = json.loads((await get("/debug/fleet"))[1])
    n1, n2 = whole["nodes"]
    assert (n1["name"], n1["reason"], n1["isolates"]) == ("n1", "FITS", True)
    assert (n2["name"], n2["reason"], n2["gpus"]) == ("n2", "NO_DEVICE", [])
    first, second = n1["gpus"]
    holder = {"pod": "default/pod-u-1", "memory_bytes": 12 * Gi, "assumed": True}
    assert first["holders"] == [
        {**holder, "uid": "simulated-0", "core_percent": 30},
        {**holder, "uid": "simulated-1", "core_percent": None},
    ]
    assert (first["granted_bytes"], first["shares_without_core"]) == (24 * Gi, 1)
    assert second["usable"] is False and second["holders"] == []
    (problem,) = whole["problems"]
    assert (problem["node"], problem["pod"]) == ("n2", "default/pod-u-1")


@pytest.mark.parametrize("nodes", [0, 1, 120])
async def test_the_fleet_is_one_json_object(nodes: int) -> None:
    state = fleet([{"kind": "Node", **node(f"n{number}")} for number in range(max(nodes, 1))])
    if not nodes:
        state.remove_node("n0")
    async with serving(state=state) as get:
        whole = json.loads((await get("/debug/fleet"))[1])
        assert len(whole["nodes"]) == nodes and whole["problems"] == []
        one = json.loads((await get("/debug/fleet?node=n0"))[1])
        assert [each["name"] for each in one["nodes"]] == (["n0"] if nodes else [])


async def test_the_fleet_is_for_the_pod_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def is_remote(remote: str | None) -> bool:
        asked.append(remote)
        return False

    monkeypatch.setattr(pages, "is_local", is_remote)
    async with serving() as get:
        status, text = await get("/debug/fleet")
        assert (status, "kubectl port-forward" in text) == (403, True)
        assert (await get("/readyz"))[0] == 200
    assert [is_local(each) for each in asked] == [True]
    local = {"127.0.0.1": True, "::1": True, "::ffff:127.0.0.1": True, "10.0.0.7": False, "": False}
    assert {each: is_local(each) for each in local} == local


async def test_an_address_that_is_taken_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("scheduler.endpoint._RETRY_S", 0.05)
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    async with serving(address=("127.0.0.1", port)) as get:
        waiting = asyncio.create_task(get("/livez"))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        assert caplog.text.count("endpoint not served") == 1
        taken.close()
        await taken.wait_closed()
        assert await waiting == (200, "ok\n")
