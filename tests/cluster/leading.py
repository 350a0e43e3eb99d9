"""A process that may bind while kube-scheduler's Lease names its host, and executes commands from
its input, for tests that stop it, kill it, and check whether it may write.

A line of input is a JSON list, the command and its arguments; a line of output is a JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

from gpuslice.kube import access
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from scheduler.cache import Cache
from scheduler.core.place import Peak, Placement, Share
from scheduler.decisions.state import State
from scheduler.kubernetes import binding
from scheduler.leadership import POST_S, Leadership


def placement(node: str) -> Placement:
    return Placement(node, (Share("c", "GPU-a", 0, 2**30, 50),), (Peak("GPU-a", 0, 2**30, 50, 50),))


class Commands:
    def __init__(self, kube: Kube, leadership: Leadership) -> None:
        self._kube = kube
        self._leadership = leadership

    async def may(self) -> dict[str, Any]:
        return {"may": self._leadership.may_write(), "status": self._leadership.status}

    async def bind(self, namespace: str, name: str, node: str, stop: bool) -> dict[str, Any]:
        """stop: between the check of the clock and the write."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        uid = (await self._kube.get(path))["metadata"]["uid"]
        writer = self._leadership.writer
        annotations = binding.annotations_of(placement(node))
        body = binding.binding(namespace, name, uid, node, annotations, writer)
        if not self._leadership.may_write():
            return {"error": self._leadership.refusal()}
        if stop:
            os.kill(os.getpid(), signal.SIGSTOP)
        try:
            await self._kube.post(f"{path}/binding", body, timeout_s=POST_S)
        except KubeError as error:
            return {"error": str(error)}
        return {"error": ""}


async def main(kubeconfig: str, hostname: str) -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with Kube(access.load(kubeconfig)) as kube:
        listed = 0

        async def relist() -> None:
            nonlocal listed
            await cache.relist()
            listed += 1

        leadership = Leadership(hostname)
        cache = Cache(kube, State(), observe_scheduler=leadership.observe)
        running = [asyncio.create_task(each) for each in (cache.run(), leadership.run(relist))]
        commands = Commands(kube, leadership)
        while line := await reader.readline():
            command, *arguments = json.loads(line)
            answer = await getattr(commands, command)(*arguments)
            print(json.dumps({**answer, "listed": listed}), flush=True)  # noqa: T201
        for each in running:
            each.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
