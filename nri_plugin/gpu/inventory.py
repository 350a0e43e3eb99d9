"""The GPUs of this node, queried from NVML in a child process, under a deadline.

nvml.py is the child. A GPU for which the driver reported one of XIDS counts as failed until the
agent restarts, because NVML does not report when the cause is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kube.log_lines import Line
from nri_plugin.child import Child, Server
from nri_plugin.policy.model import Gpu
from nri_plugin.policy.refusals import ChildError

_LOG: Final = logging.getLogger(__name__)

_REST: Final = 20
"""Minimum pause between background queries, as a multiple of the last one's duration: initializing
NVML takes seconds if persistence mode is off, and wakes the GPUs."""

XIDS: Final[Mapping[int, str]] = {
    48: "double-bit ECC error",
    63: "row remapping or page retirement recorded",
    64: "row remapping or page retirement failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
}
"""Errors of the GPU itself, from NVIDIA's list; programs cause the others."""


def pace_s(took_s: float, shortest_s: float, longest_s: float) -> float:
    """Return the interval between queries, so that they take at most a twentieth of the time."""
    return min(longest_s, max(shortest_s, _REST * took_s))


class Inventory:
    """The cached GPUs; queried again on demand, at most once per `min_interval_s`.

    deadline_s: NVML takes seconds if persistence mode is off. now: a monotonic clock in seconds.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        deadline_s: float = 10.0,
        min_interval_s: float = 5.0,
        now: Callable[[], float] = time.monotonic,
        command: Sequence[str] = (sys.executable, "-m", "nri_plugin.gpu.nvml"),
    ) -> None:
        self._child = Child(command, environment, deadline_s=deadline_s, subject="NVML")
        self._server = Server(self._child, min_interval_s=0, now=now)
        self._min_interval_s = min_interval_s
        self._now = now
        self.gpus: Sequence[Gpu] = ()
        """The last successful query's result without failed GPUs."""
        self.seen: Sequence[Gpu] = ()
        """The same including failed GPUs."""
        self._xids: dict[str, int] = {}
        self._without_uuid: Sequence[str] = ()
        self.driver = ""
        """The driver's version; "" until the first query succeeded."""
        self._queried_at: float | None = None
        self.took_s = 0.0
        """Duration of the last query, until its answer or failure."""
        self._refreshing: asyncio.Task[None] | None = None
        self.problem: str | None = "NVML has not reported the GPUs yet"
        """Why the last query failed; None if it did not."""

    async def refresh(self) -> None:
        """Query again unless that was done just now. A failure is logged and keeps the GPUs.

        A cancelled caller does not cancel the query; it serves the next caller.
        """
        self.query_if_older(self._min_interval_s)
        if self._refreshing is not None:
            await asyncio.shield(self._refreshing)

    def with_problems(self, problems: Mapping[str, str]) -> Sequence[Gpu]:
        """Return NVML's GPUs; one without a problem of its own has that of its UUID."""
        return [
            replace(gpu, problem=gpu.problem or problems.get(gpu.uuid, "")) for gpu in self.seen
        ]

    def query_if_older(self, max_age_s: float) -> None:
        """Start a query unless one started within `max_age_s`; returns at once."""
        due = self._queried_at is None or self._now() - self._queried_at >= max_age_s
        if due and (self._refreshing is None or self._refreshing.done()):
            self._queried_at = self._now()
            self._refreshing = asyncio.create_task(self._refresh(), name="inventory")

    async def close(self) -> None:
        """Cancel a running query, and end the child."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._refreshing
        await self._server.close()

    async def _refresh(self) -> None:
        began_s = self._now()
        try:
            answer = decode(await self._server.request())
        except ChildError as error:
            level = logging.DEBUG if str(error) == self.problem else logging.ERROR
            self.problem = str(error)
            _LOG.log(level, Line("GPU inventory failed", error=error, gpus=len(self.gpus)))
        else:
            self._take(answer)
        finally:
            self.took_s = self._now() - began_s

    def _take(self, answer: Answer) -> None:
        for uuid, xid in answer.xids:
            if xid in XIDS:
                self._xids.setdefault(uuid, xid)
        seen = tuple(map(self._with_xid, answer.gpus))
        new = self.problem is not None or (seen, answer.without_uuid) != (
            self.seen,
            self._without_uuid,
        )
        self.problem, self.seen, self._without_uuid = None, seen, answer.without_uuid
        self.driver = answer.driver
        self.gpus = tuple(gpu for gpu in seen if not gpu.problem)
        uuids = ",".join(gpu.uuid for gpu in self.gpus)
        level = logging.INFO if new else logging.DEBUG
        text = "GPU inventory changed" if new else "GPU inventory read"
        _LOG.log(level, Line(text, gpus=len(self.gpus), uuids=uuids))
        for gpu in seen if new else ():
            if gpu.problem:
                _LOG.error(Line("GPU unhealthy", uuid=gpu.uuid, problem=gpu.problem))
        for problem in answer.without_uuid if new else ():
            _LOG.error(Line("GPU unhealthy", problem=problem))

    def _with_xid(self, gpu: Gpu) -> Gpu:
        xid = self._xids.get(gpu.uuid)
        if xid is None or gpu.problem:
            return gpu
        return replace(gpu, problem=f"the driver reported XID {xid} ({XIDS[xid]})")


@dataclass(frozen=True, slots=True)
class Answer:
    """The child's answer. without_uuid: why GPUs do not return even their UUIDs."""

    driver: str
    gpus: Sequence[Gpu]
    xids: Sequence[tuple[str, int]]
    without_uuid: Sequence[str]


def decode(reply: bytes) -> Answer:
    """Parse the child's line, whose GPUs have Gpu's fields; raises ChildError for other data."""
    try:
        reported = json.loads(reply)
        gpus = tuple(Gpu(**gpu) for gpu in reported["gpus"])
        xids = tuple((uuid, xid) for uuid, xid in reported.get("xids", ()))
        return Answer(
            reported.get("driver", ""), gpus, xids, tuple(reported.get("without_uuid", ()))
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ChildError(f"unreadable answer: {error!r}") from error
