"""A state of two nodes, an HTTP server with every outcome of an API server, and a binder."""

from __future__ import annotations

from asyncio import Task, create_task
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from gpuslice.kube.client import Kube
from scheduler.binder import Binder
from scheduler.decisions.state import State
from scheduler.decisions.verbs import Verbs
from scheduler.kubernetes import translate
from scheduler.kubernetes.arguments import BindingArguments
from tests.scheduler import calls
from tests.scheduler.lease_guards import ManualLeaseGuard
from tests.scheduler.pod_server import Misfortune, PodServer


class Scene:
    """A binder with an API server. By default, two nodes have one GPU each, and the pod u-1
    requests half a GPU."""

    def __init__(self, server: PodServer, kube: Kube, state: State | None = None) -> None:
        self.server = server
        self.state = state or calls.state(nodes=2, gpus=1)
        self.guard = ManualLeaseGuard()
        self.now_s = 0.0
        self.verbs = Verbs(self.state)
        clocks = (lambda: self.now_s, count(1001).__next__)
        self.binder = Binder(self.state, kube, self.guard, self.verbs, *clocks)

    def ask(self, raw: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call filter with the pod and all nodes. raw: the pod as kube-scheduler sends it."""
        among = [name for name in self.state.fleet.names if name]
        return calls.filtered(self.verbs, raw or calls.pod(), among)

    async def attempt(self, *fates: Misfortune) -> str:
        """Make one scheduling attempt for the pod, on n0. fates: the outcomes of its POSTs."""
        self.server.posts = [*fates]
        self.ask()
        return await self.bind()

    async def bind(self, uid: str = "u-1", node: str = "n0") -> str:
        arguments = BindingArguments("default", f"pod-{uid}", uid, node)
        return (await self.binder.bind(arguments)).error

    async def begun(self, *fates: Misfortune, uid: str = "u-1") -> Task[str]:
        """Start a scheduling attempt, and return once its Binding was sent."""
        self.server.posts = [*fates]
        self.ask(calls.pod(uid))
        binding = create_task(self.bind(uid))
        await self.server.sent.wait()
        return binding

    async def check_overdue(self, now_s: float = 1e6) -> None:
        self.now_s = now_s
        await self.binder.check_overdue()

    def watch(self, uid: str = "u-1") -> None:
        """Let the watch deliver the server's present version of the pod."""
        self.state.observe_pod(translate.pod(self.server.pods[f"pod-{uid}"]))

    @property
    def sent(self) -> int:
        return len(self.server.bindings)

    def held(self, node: str = "n0") -> int:
        """Return the percent of compute that pods hold of the node's GPU."""
        return int(self.state.fleet.used_core[self.state.fleet.row_of(node), 0])


@asynccontextmanager
async def scene_of(*pods: dict[str, Any], state: State | None = None) -> AsyncIterator[Scene]:
    server = PodServer(*(pods or (calls.pod(),)))
    async with server.serving() as access, Kube(access) as kube:
        yield Scene(server, kube, state)
