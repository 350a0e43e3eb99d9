"""At most one process writes, on a real API server, also if one is halted in the middle of its
work. The test writes the Lease as kube-scheduler does.

Cases and random runs without a server: tests/scheduler/test_leadership.py. With kube-schedulers:
test_service.py and test_storms.py.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from http.client import RemoteDisconnected
from typing import Final

import pytest

from gpuslice.kube import access
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from lab.cluster.controlplane import ControlPlane
from scheduler.cache import Cache
from scheduler.core.place import Peak, Placement, Share
from scheduler.decisions.state import State
from scheduler.kubernetes import binding
from scheduler.leadership import POST_S, Leadership
from tests.cluster.admission import scheduler_lease
from tests.cluster.admission.scheduler_lease import KubeScheduler
from tests.cluster.server import Server
from tests.requests.pods import HALF, asking, pod
from tests.support import until_async

pytestmark = pytest.mark.cluster

_LEASE_S: Final = 15
_NODE: Final = "node-of-leaders"
_PODS: Final = "/api/v1/namespaces/default/pods"


class Extender:
    """What decides whether an extender writes, beside a kube-scheduler of the same host name."""

    def __init__(self, plane: ControlPlane, kube: Kube, hostname: str) -> None:
        self.leadership = Leadership(hostname)
        self._kube = kube
        self._kube_scheduler = KubeScheduler(plane, hostname)
        cache = Cache(kube, State(), observe_scheduler=self.leadership.observe)
        running = (cache.run(), self.leadership.run(cache.relist))
        self._tasks = [asyncio.create_task(each) for each in running]

    async def lead(self) -> None:
        await asyncio.to_thread(self._kube_scheduler.acquire)
        await until_async(self.leadership.may_write)

    async def halt(self) -> None:
        """As a process that is stopped: nothing is observed or renewed. It may be called twice."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await asyncio.to_thread(self._kube_scheduler.kill)

    async def post(self, name: str, writer: str) -> str:
        """Sends the Binding of a pod, as after the check of the clock. Returns the error."""
        uid = (await self._kube.get(f"{_PODS}/{name}"))["metadata"]["uid"]
        share, peak = Share("c", "GPU-a", 0, 2**30, 50), Peak("GPU-a", 0, 2**30, 50, 50)
        annotations = binding.annotations_of(Placement(_NODE, (share,), (peak,)))
        body = binding.binding("default", name, uid, _NODE, annotations, writer)
        try:
            await self._kube.post(f"{_PODS}/{name}/binding", body, timeout_s=POST_S)
        except KubeError as error:
            return str(error)
        return ""


async def test_what_one_sends_that_was_halted_in_between_is_refused_by_the_api_server(
    installed: ControlPlane, server: Server
) -> None:
    """Halted after its check of the clock: its POST is sent when another process has already
    bound. Its next check fails."""
    scheduler_lease.delete(installed)
    with ExitStack() as stack:
        stack.callback(scheduler_lease.delete, installed)
        stack.enter_context(server.made("/api/v1/nodes", {"metadata": {"name": _NODE}}))
        for name in ("late", "next"):
            stack.enter_context(server.made(_PODS, pod(asking(HALF), name=name)))
        async with Kube(access.load(str(installed.kubeconfig("scheduler")))) as kube:
            first, second = (Extender(installed, kube, name) for name in "ab")
            try:
                await first.lead()
                assert not second.leadership.may_write()
                writer = first.leadership.writer
                await first.halt()
                # As long as another kube-scheduler would wait.
                renewed = server.get(scheduler_lease.PATH)["spec"]["renewTime"]
                expired = datetime.fromisoformat(renewed) + timedelta(seconds=_LEASE_S)
                await until_async(lambda: datetime.now(UTC) > expired)
                await second.lead()
                assert await second.post("next", second.leadership.writer) == ""
                error = await first.post("late", writer)
                assert "invalid value 'a_1': must be 'b_1', the holder" in error
                assert "nodeName" not in server.get(f"{_PODS}/late")["spec"]
                assert not first.leadership.may_write()
            finally:
                for each in (first, second):
                    await each.halt()


def test_a_write_that_is_late_is_given_up_by_the_server(installed: ControlPlane) -> None:
    """The timeout in its query ends it. The argument of ADR 18 relies on that."""
    late = {"metadata": {"name": "late"}}
    # It may drop the connection instead of an answer.
    with Server(installed) as server, suppress(RemoteDisconnected):
        assert server.ask("POST", "/api/v1/namespaces?timeout=1us", late).status == 504
    with Server(installed) as server:
        assert server.ask("GET", "/api/v1/namespaces/late").status == 404
