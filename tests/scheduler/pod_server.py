"""An HTTP server with pods and their binding subresource, which can fail as a test demands.

It applies Bindings by the rules of kube-apiserver. tests/cluster uses a real API server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from enum import Enum, auto
from typing import Any

from aiohttp import web

from gpuslice.kube.access import Access
from tests.kube.api_server import abort, json, refuse, serving


class Fate(Enum):
    """The outcome of a call. For a POST, it also says whether the Binding is applied."""

    HANG = auto()
    RESET = auto()
    RESET_DONE = auto()
    LATE = auto()
    """The server does not answer, and applies the Binding when `land` is called."""
    STORE_TIMES_OUT = auto()
    """The server does not know the outcome, and answers 409, as it does for every store error."""
    STORE_TIMES_OUT_DONE = auto()


Misfortune = Fate | int
"""An outcome, or as an int the status of a refusal."""


class PodServer:
    """Serves pods by name, in namespace default. The next calls have the outcomes in `posts` and
    `gets`, and later calls succeed. A Binding takes `slow_s`. A GET sets `asked`, and a POST sets
    `sent`. `bindings` has all received Bindings, applied or not."""

    slow_s = 0.0
    seen_gets = most_under_way = _under_way = 0
    _version = 100

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods = {pod["metadata"]["name"]: pod for pod in pods}
        self.posts: list[Misfortune] = []
        self.gets: list[Misfortune] = []
        self.bindings: list[dict[str, Any]] = []
        self.queries: list[dict[str, str]] = []
        self.asked, self.sent = asyncio.Event(), asyncio.Event()
        self._late: list[dict[str, Any]] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Access]:
        async with serving(self._answer) as access:
            yield access

    def touch(self, name: str) -> None:
        """Give the pod a new resourceVersion, as if another program had changed the pod."""
        self._version += 1
        self.pods[name]["metadata"]["resourceVersion"] = str(self._version)

    def land(self) -> None:
        """Apply the delayed Bindings that the server still accepts."""
        while self._late:
            self._assign(self._late.pop(0))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        *_, name = request.path.removesuffix("/binding").split("/")
        if request.method == "GET":
            self.seen_gets += 1
            self.asked.set()
            if self.gets:
                return await self._befall(request, self.gets.pop(0))
            pod = self.pods.get(name)
            return json(pod) if pod else refuse(404, "NotFound", f'pods "{name}" not found')
        binding = await request.json()
        self.bindings.append(binding)
        self.queries.append(dict(request.query))
        self.sent.set()
        self._under_way += 1
        self.most_under_way = max(self.most_under_way, self._under_way)
        await asyncio.sleep(self.slow_s)
        self._under_way -= 1
        if self.posts:
            return await self._befall(request, self.posts.pop(0), binding)
        problem = self._assign(binding)
        return _failure(problem) if problem else json({"kind": "Status"}, 201)

    async def _befall(
        self, request: web.Request, fate: Misfortune, binding: dict[str, Any] | None = None
    ) -> web.StreamResponse:
        if isinstance(fate, int):
            return refuse(fate, f"Code{fate}", "it is so")
        if binding is not None and fate.name.endswith("DONE"):
            assert self._assign(binding) == ""
        if binding is not None and fate is Fate.LATE:
            self._late.append(binding)
        if fate in (Fate.STORE_TIMES_OUT, Fate.STORE_TIMES_OUT_DONE):
            return _failure("etcdserver: request timed out")
        if fate in (Fate.RESET, Fate.RESET_DONE):
            abort(request)
        else:
            await asyncio.sleep(60)
        raise ConnectionResetError

    def _assign(self, binding: dict[str, Any]) -> str:
        problem = bind(self.pods, binding)
        if not problem:
            self.touch(binding["metadata"]["name"])
        return problem


def bind(pods: Mapping[str, dict[str, Any]], binding: dict[str, Any]) -> str:
    """Apply the Binding to the pod that it names. Return why it is refused, or ""."""
    metadata = binding["metadata"]
    pod = pods.get(metadata["name"])
    if pod is None:
        return "not found"
    there = pod["metadata"]
    for key in ("uid", "resourceVersion"):
        if metadata.get(key, there[key]) != there[key]:
            return f"Precondition failed: {key}"
    if pod["spec"].get("nodeName"):
        return f'is already assigned to node "{pod["spec"]["nodeName"]}"'
    pod["spec"]["nodeName"] = binding["target"]["name"]
    there["annotations"] = {**there["annotations"], **metadata.get("annotations", {})}
    return ""


def _failure(problem: str) -> web.Response:
    if problem == "not found":
        return refuse(404, "NotFound", "pods not found")
    return refuse(409, "Conflict", f"Operation cannot be fulfilled on pods/binding: {problem}")
