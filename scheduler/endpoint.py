"""The HTTP endpoint for probes, Prometheus and people.

It runs on the main event loop, so an answer of /livez shows that the loop runs. It changes nothing
and needs no authentication. /debug/fleet shows pod names and allocations, so it accepts connections
only from the pod itself. Connections of `kubectl port-forward` come from the pod.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import aiohttp
import orjson
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from gpuslice.kube.addresses import host_port
from gpuslice.kube.log_lines import Line
from scheduler.core.reasons import Reason
from scheduler.core.request import WHOLE_PERCENT
from scheduler.decisions import view
from scheduler.decisions.state import State
from scheduler.metrics import Metrics

Address = tuple[str, int]

_LOG: Final = logging.getLogger(__name__)

PAGES: Final = ("/livez", "/livez/kube-scheduler", "/readyz", "/metrics", "/debug/fleet")
KUBE_SCHEDULER: Final = "127.0.0.1", 10259
_KUBE_SCHEDULER: Final = aiohttp.ClientTimeout(total=4.0)
LEAVE_S: Final = 1.0
_RETRY_S: Final = 5.0
_FRESH_S: Final = 1.0
"""Age at which metrics are computed again. This blocks the loop for 30 ms at 5,000 nodes."""
_AT_ONCE: Final = 50
"""The number of nodes after which /debug/fleet lets the event loop run."""
_LAG_S: Final = 150.0
"""After this silence a watch counts as broken: the API server sends a bookmark every minute."""


class Source(Protocol):
    """The methods of `cache.Cache` that the endpoint uses."""

    @property
    def synced(self) -> bool: ...
    def problems(self) -> Sequence[str]: ...
    def ages(self) -> Mapping[str, float]: ...
    def lists(self) -> Mapping[str, int]: ...


class Endpoint:
    """The HTTP pages. status: returns the last lines of /readyz. kube_scheduler: the address of
    kube-scheduler's own pages."""

    def __init__(
        self,
        state: State,
        source: Source,
        metrics: Metrics,
        status: Callable[[], str],
        kube_scheduler: Address = KUBE_SCHEDULER,
    ) -> None:
        self._state = state
        self._source = source
        self._metrics = metrics
        self._status = status
        self._kube_scheduler = f"https://{host_port(*kube_scheduler)}/healthz"  # 1.30 has no /livez
        self._listed: dict[str, int] = {}
        self._refreshed_s = float("-inf")
        self._fleet_lock = asyncio.Lock()
        """Allows one /debug/fleet request at a time. For 5,000 nodes a request takes half a second
        of the event loop's time, in small parts."""

    async def run(self, address: Address, served: Callable[[str], None]) -> None:
        """Serve until cancelled. If another process has the address, keep trying: pods can be bound
        without the endpoint. served: called with the address once it is served."""
        app = web.Application()
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/livez/kube-scheduler", self._livez_of_kube_scheduler)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics_page)
        app.router.add_get("/debug/fleet", self._fleet)
        app.router.add_get("/{other:.*}", self._other)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=LEAVE_S)
        await runner.setup()
        try:
            await _listen(runner, address)
            host, port, *_ = runner.addresses[0]
            served(host_port(host, port))
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    @property
    def problems(self) -> Sequence[str]:
        """Why the scheduler is not ready. Empty if it is."""
        problems = list(self._source.problems())
        for kind, age_s in self._source.ages().items():
            if _LAG_S < age_s < float("inf"):
                problems.append(f"{kind}: no message from the API server for {age_s:.0f} s")
        if not self._source.synced and not problems:
            problems.append("the lists of pods, nodes and GPUs are not complete yet")
        return problems

    async def _livez(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _livez_of_kube_scheduler(self, request: web.Request) -> web.Response:
        """Answer 200 if kube-scheduler does. Its certificate is self-signed."""
        url, timeout = self._kube_scheduler, _KUBE_SCHEDULER
        try:
            async with aiohttp.request("GET", url, ssl=False, timeout=timeout) as answer:
                text, is_live = f"status {answer.status}", answer.status == 200
        except (aiohttp.ClientError, TimeoutError) as error:
            text, is_live = f"{type(error).__name__} {error}".rstrip(), False
        return web.Response(text=f"kube-scheduler: {text}\n", status=200 if is_live else 503)

    async def _readyz(self, request: web.Request) -> web.Response:
        problems = self.problems
        lines = [*(problems or ["ok"]), self._status()]
        return web.Response(text="\n".join(lines) + "\n", status=503 if problems else 200)

    async def _metrics_page(self, request: web.Request) -> web.Response:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._refreshed_s >= _FRESH_S:
            self._refreshed_s = now_s
            self.refresh()
        body = self._metrics.render()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _fleet(self, request: web.Request) -> web.StreamResponse:
        """Answer with a JSON object, in parts, so that a large one does not block the scheduler."""
        if not is_local(request.remote):
            text = "/debug/fleet is served only to the pod itself: use kubectl port-forward\n"
            return web.Response(text=text, status=403)
        async with self._fleet_lock:
            return await self._write_fleet(request)

    async def _write_fleet(self, request: web.Request) -> web.StreamResponse:
        names = view.names_of(self._state, request.query.get("node"))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        problems = orjson.dumps(view.problems(self._state))
        await response.write(b'{"problems":' + problems + b',"nodes":[\n')
        for start in range(0, len(names), _AT_ONCE):
            some = [
                orjson.dumps(each) for each in view.nodes(self._state, names[start:][:_AT_ONCE])
            ]
            if some:
                await response.write((b",\n" if start else b"") + b",\n".join(some))
            await asyncio.sleep(0)
        await response.write(b"\n]}\n")
        return response

    async def _other(self, request: web.Request) -> web.Response:
        return web.Response(text=f"path: must be one of {', '.join(PAGES)}\n", status=404)

    def refresh(self) -> None:
        """Update the metrics that are computed from the current state."""
        metrics = self._metrics
        measure(self._state, metrics)
        metrics.ready.set(not self.problems)
        for kind, age_s in self._source.ages().items():
            metrics.watch_age.labels(kind).set(age_s)
        for kind, count in self._source.lists().items():
            metrics.lists.labels(kind).inc(count - self._listed.get(kind, 0))
            self._listed[kind] = count


def is_local(remote: str | None) -> bool:
    """Return whether the peer's address is a loopback address."""
    try:
        address = ipaddress.ip_address(remote or "")
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


async def _listen(runner: web.AppRunner, address: Address) -> None:
    was_logged = False
    while True:
        try:
            await web.TCPSite(runner, *address).start()
            return
        except OSError as error:
            if not was_logged:
                written = f"{address[0]}:{address[1]}"
                _LOG.error(Line("endpoint not served", address=written, error=error.strerror))
            was_logged = True
            await asyncio.sleep(_RETRY_S)


def measure(state: State, metrics: Metrics) -> None:
    """Set the gauges that are computed from State. Free memory and the largest free share count
    only usable GPUs of nodes that accept pods."""
    fleet, rows = state.fleet, state.fleet.all_rows()
    total, blocked = fleet.total_bytes[rows], fleet.blocked_by[rows]
    free = fleet.free_bytes[rows][blocked == Reason.FITS]
    gpus, usable = int((total > 0).sum()), int(fleet.usable[rows].sum())
    metrics.nodes.clear()
    for blocked_by, count in Counter(blocked.tolist()).items():
        metrics.nodes.labels(Reason(blocked_by).name).set(count)
    metrics.gpus.labels("usable").set(usable)
    metrics.gpus.labels("unusable").set(gpus - usable)
    metrics.memory_bytes.labels("total").set(total.sum())
    metrics.memory_bytes.labels("granted").set(fleet.used_bytes[rows].sum())
    metrics.memory_bytes.labels("free").set(free.sum())
    metrics.core_ratio.set(fleet.used_core[rows].sum() / max(1, WHOLE_PERCENT * gpus))
    metrics.largest_free.set(free.max(initial=0))
    metrics.assumed.set(len(state.assumed))
    metrics.problems.set(len(state.problems()))
