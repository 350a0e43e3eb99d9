"""A state of two nodes, an HTTP server with every outcome of an API server, and a binder."""

from __future__ import annotations

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
    """A state of two nodes with one GPU each, a server, and a binder."""

    def __init__(
        self, server: PodServer, kube: Kube, state: State, guard: ManualLeaseGuard
    ) -> None:
        self.server = server
        self.state = state
        self.guard = guard
        self.now_s = 0.0
        self.verbs = Verbs(state)
        self.wall_ns = count(1001)
        self.binder = Binder(
            state, kube, guard, self.verbs, lambda: self.now_s, self.wall_ns.__next__
        )

    def ask(self, raw: dict[str, Any]) -> dict[str, Any]:
        """kube-scheduler sends filter for the pod, as it knows it."""
        among = [name for name in self.state.fleet.names if name]
        return calls.loads(self.verbs.filter(calls.arguments(raw, among)))

    async def attempt(self, *fates: Misfortune) -> str:
        """One scheduling attempt for the pod on n0. fates: of its POSTs."""
        self.server.posts = [*fates]
        self.ask(calls.pod())
        return await self.bind()

    async def bind(self, uid: str = "u-1", node: str = "n0") -> str:
        arguments = BindingArguments("default", f"pod-{uid}", uid, node)
        return (await self.binder.bind(arguments)).error

    def watch(self, uid: str = "u-1") -> None:
        """The watch delivers the pod as it is now."""
        self.state.observe_pod(translate.pod(self.server.pods[f"pod-{uid}"]))

    def held(self, node: str = "n0") -> int:
        """Percent held of the node's GPU."""
        row = self.state.fleet.row_of(node)
        return int(self.state.fleet.used_core[row, 0])


@asynccontextmanager
async def scene_of(*pods: dict[str, Any], state: State | None = None) -> AsyncIterator[Scene]:
    server = PodServer(*(pods or (calls.pod(),)))
    async with server.serving() as access, Kube(access) as kube:
        yield Scene(server, kube, state or calls.state(nodes=2, gpus=1), ManualLeaseGuard())
