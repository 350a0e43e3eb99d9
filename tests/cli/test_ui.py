"""`gpuslice ui`: which requests it answers, and the page in a browser."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gpuslice.cli.first_lists import DEVICES
from gpuslice.cli.live import Reader
from gpuslice.cli.ui import Page
from tests.cli.objects import devices, holder, waiting
from tests.kube.api_server import client_of, listed

NAME = "<img src=x onerror=document.title='broken'>"


@asynccontextmanager
async def served(*pods: Any, nodes: int = 1) -> AsyncIterator[tuple[str, Page]]:
    """Serve the page of a cluster, and yield its address."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return listed(*(devices(nodes) if request.path == DEVICES else pods))

    async with client_of(answer) as kube:
        page = Page(Reader(kube), "secret")
        runner = web.ServerRunner(web.Server(page.respond), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host = f"127.0.0.1:{runner.addresses[0][1]}"
        page.hosts = frozenset({host})
        try:
            yield f"http://{host}", page
        finally:
            await runner.cleanup()


@pytest.mark.parametrize(
    ("path", "host", "status"),
    [
        ("/secret/", "", 200),
        ("/secret/ui.js", "", 200),
        ("/secret/data", "", 200),
        ("/secret/other", "", 404),
        ("/secret/../ui.py", "", 403),
        ("/wrong/data", "", 403),
        ("/", "", 403),
        ("/secret/data", "attacker.example", 421),
    ],
)
async def test_only_the_printed_address_is_answered(path: str, host: str, status: int) -> None:
    async with served(holder("p", 20, 50)) as (url, _), aiohttp.ClientSession() as session:
        headers = {"Host": host} if host else {}
        async with session.get(f"{url}{path}", headers=headers) as answer:
            assert answer.status == status
            assert "script-src 'self'" in answer.headers["Content-Security-Policy"]


async def test_the_data_are_of_the_nodes_that_the_filter_selects() -> None:
    pods = [holder("p", 20, 50), waiting("w", "why")]
    async with served(*pods, nodes=60) as (url, _), aiohttp.ClientSession() as session:
        async with session.get(f"{url}/secret/data") as answer:
            found = await answer.json()
        assert (len(found["nodes"]), found["total"]) == (50, 60)
        async with session.get(f"{url}/secret/data?node=0000") as answer:
            (node,) = (await answer.json())["nodes"]
        assert node["gpus"][0]["slices"][0]["pod"] == "p"
        assert found["waiting"][0]["reason"] == "why"


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs Debian's package chromium")
async def test_a_browser_shows_the_cluster_and_runs_no_name(tmp_path: Path) -> None:
    async with served(holder(NAME, 20, 50), waiting("w", NAME)) as (url, _):
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
        browser = await asyncio.create_subprocess_exec(
            *("chromium", *options, f"--user-data-dir={tmp_path}", "--virtual-time-budget=9000"),
            *("--dump-dom", f"{url}/secret/"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        written, _ = await asyncio.wait_for(browser.communicate(), 200)
    dom = written.decode()
    assert "nodes: 1, GPUs: 2, slices: 1, waiting: 1" in dom
    assert "- of 20.0" in dom and "<title>gpuslice</title>" in dom
    assert dom.count("&lt;img src=x") == 2 and "<img" not in dom
    assert '<polyline points="' in dom
