"""The whole service in virtual time. tests/cluster/test_service.py uses a real API server."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any
from unittest import mock

import pytest

from gpuslice.contract import names
from gpuslice.kube.errors import KubeError
from scheduler import cache, events, leadership, service
from tests.scheduler import calls, objects, test_cache
from tests.scheduler.test_admission import AUTO, binding
from tests.virtual_time import loop_factory as loop_factory
from tests.virtual_time import now


class Server(test_cache.Server):
    """Answers without HTTP. Its objects never change. holder: of kube-scheduler's Lease. seen: the
    name of each patched object, each Event's reason, with the pod of a problem, and what each
    announced line begins with."""

    problem = ""

    def __init__(self, holder: str) -> None:
        self.seen: set[str] = set()
        unserved = calls.pod("unserved")
        unserved["spec"]["schedulerName"] = "hami-scheduler"
        unclear = calls.pod("unclear", node="n1")
        super().__init__(*map(test_cache.refused, "ab"), unclear, unserved)
        lease = objects.lease("n1")
        lease["metadata"]["name"] = names.LEASE_KUBE_SCHEDULER
        lease["spec"] |= {"holderIdentity": holder, "leaseDurationSeconds": 3600}
        self.objects[cache.LEASES].append(lease)

    async def list(self, path: str, **_: object) -> Any:
        yield self.objects.get(path, [binding("policy", AUTO, ["Audit"])]), "1"

    async def watch(self, path: str, version: str, **_: object) -> Any:
        yield ()
        await asyncio.Event().wait()

    async def get(self, path: str, **_: object) -> Any:
        return {"gitVersion": "v1.36.3"}

    async def patch(self, path: str, body: dict[str, Any], **_: object) -> Any:
        name = body.get("reason", path.removesuffix("/status").rpartition("/")[2])
        self.seen.add(name)
        if name == events.POD_PROBLEM:
            self.seen.add(body["regarding"]["name"])
        if name == "pod-a":
            raise KubeError(404, "NotFound", "")
        return {**body, "metadata": {"name": name}}

    post = patch

    def announce(self, line: str) -> None:
        self.seen.add(line.partition(":")[0])


OURS = {"serving", "pod-a", "pod-b", "policy", "policy-warn", events.POD_PROBLEM}
OURS |= {"pod-unclear", "pod-unserved"}
SEEN = {"a": OURS, "b": {events.SECOND_INSTALLATION}}


@pytest.mark.parametrize("holder", SEEN)
async def test_the_leases_holder_writes(
    holder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another pod's process reports that kube-scheduler calls it. Each reports the version skew."""
    server: Any = Server(f"{holder}_1")
    wall, leaving = lambda: objects.RENEWED_S, asyncio.Event()
    guard = leadership.Leadership("a", now, wall)
    monkeypatch.setattr(service, "Leadership", lambda _: guard)
    monkeypatch.setattr(service, "Cache", partial(cache.Cache, wall=wall))
    monkeypatch.setattr(service, "boot_clock", now)
    monkeypatch.setattr(service, "gc", mock.Mock())
    address = ("127.0.0.1", 0)
    pages = address if holder == "a" else None
    settings = service.Settings(
        listen=address, http=pages, kube_scheduler_version="v1.34.0", report_s=27.0, versions_s=9.0
    )
    running = asyncio.create_task(service.run(settings, server, leaving, server.announce))
    for _ in range(20):
        await asyncio.sleep(5)
        guard.record_call()
    leaving.set()
    await running
    assert (server.seen, guard.leaving) == ({"extender", "ready", *SEEN[holder]}, True)
    assert "must be the minor version of the API server, v1.36.3, or one below it" in caplog.text
