"""A process that participates in the election and executes commands from its input, for tests that
stop it, kill it, and check whether it may write.

A line of input is a JSON list, the command and its arguments; a line of output is a JSON object.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from typing import Any

from gpuslice.kube import access
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from scheduler.core.place import Peak, Placement, Share
from scheduler.kubernetes import binding
from scheduler.leader import Leader
from scheduler.leadership.election import POST_S
from scheduler.metrics import Metrics
from scheduler.service import identity


def placement(node: str) -> Placement:
    return Placement(node, (Share("c", "GPU-a", 0, 2**30, 50),), (Peak("GPU-a", 0, 2**30, 50, 50),))


class Commands:
    def __init__(self, kube: Kube, leader: Leader) -> None:
        self._kube = kube
        self._leader = leader
        self._asking: asyncio.Task[None] | None = None

    async def keep_asking(self) -> dict[str, Any]:
        self._asking = asyncio.create_task(self._ask_on())
        return {}

    async def _ask_on(self) -> None:
        while True:
            await self._leader.admit()
            await asyncio.sleep(0.2)

    async def may(self) -> dict[str, Any]:
        return {"may": self._leader.may_write(), "status": self._leader.status}

    async def bind(self, namespace: str, name: str, node: str, stop: bool) -> dict[str, Any]:
        """stop: between the check of the clock and the write."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        uid = (await self._kube.get(path))["metadata"]["uid"]
        writer = self._leader.writer
        annotations = binding.annotations_of(placement(node))
        body = binding.binding(namespace, name, uid, node, annotations, writer)
        with contextlib.suppress(KubeError), self._leader.writing():
            if not self._leader.may_write():
                return {"error": self._leader.refusal()}
            if stop:
                os.kill(os.getpid(), signal.SIGSTOP)
            try:
                await self._kube.post(f"{path}/binding", body, timeout_s=POST_S)
            except KubeError as error:
                return {"error": str(error)}
        return {"error": ""}


async def main(kubeconfig: str) -> None:
    with identity("here", None) as me:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async with Kube(access.load(kubeconfig)) as kube:
            listed = 0

            async def relist() -> None:
                nonlocal listed
                listed += 1

            leader = Leader(kube, me, relist, Metrics())
            running = asyncio.create_task(leader.run())
            commands = Commands(kube, leader)
            print(json.dumps({"identity": me.identity}), flush=True)  # noqa: T201
            while line := await reader.readline():
                command, *arguments = json.loads(line)
                answer = await getattr(commands, command)(*arguments)
                print(json.dumps({**answer, "listed": listed}), flush=True)  # noqa: T201
            running.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
