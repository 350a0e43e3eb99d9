"""Runs the extender with a made-up fleet and without an API server, to measure only the verbs. It
prints its port as its first line, and runs until its standard input ends.

    python -m bench.scheduling.extender_alone NODES PODS
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Mapping
from typing import Any

import uvloop

from bench.scheduling import fleets
from scheduler.binder import Binder
from scheduler.decisions.verbs import Verbs
from scheduler.extender import Extender
from scheduler.leadership import Leadership
from scheduler.metrics import Metrics


class _AcceptingClient:
    """Replaces the API server, and accepts every write at once."""

    async def get(self, path: str, *, timeout_s: float = 0.0) -> Mapping[str, Any]:
        raise AssertionError(f"unexpected request for {path}")

    async def post(
        self, path: str, body: Any, *, timeout_s: float = 0.0, **query: object
    ) -> Mapping[str, Any]:
        return {}


class _Holder(Leadership):
    """Has the right to bind from the start."""

    def record_call(self) -> bool:
        return True

    def may_write(self) -> bool:
        return True


async def main(size: fleets.Size) -> None:
    state, holder = fleets.filled(size), _Holder("bench")
    verbs = Verbs(state)
    binder = Binder(state, _AcceptingClient(), holder, verbs)
    extender = Extender(verbs, binder, holder, lambda: True, Metrics())
    serving = await extender.serve("127.0.0.1", 0)
    sys.stdout.write(f"{serving.addresses[0][1]}\n")
    sys.stdout.flush()
    with contextlib.suppress(EOFError):
        await asyncio.to_thread(sys.stdin.read)
    await serving.cleanup()


if __name__ == "__main__":
    # Do not log refused binds: the caller retries a bind if another pod has filled the GPU.
    logging.getLogger("scheduler.extender").setLevel(logging.ERROR)
    _, nodes, pods = sys.argv
    uvloop.run(main(fleets.Size(int(nodes), int(pods))))
