"""Requeues pods that fit and that kube-scheduler would not retry in time.

kube-scheduler retries a refused pod when the pod changes. Therefore this module writes the time in
an annotation, by a patch of the pod's status, which kube-scheduler may write. A pod that has
replaced the refused one is not changed. The search pauses every few milliseconds for other tasks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from gpuslice.contract import names
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from gpuslice.kube.log_lines import Line
from scheduler.decisions.requeue import Unschedulable
from scheduler.decisions.sampling import Requeue, Sampling
from scheduler.kubernetes.requests import Pending
from scheduler.metrics import Metrics

_LOG: Final = logging.getLogger(__name__)

SLICE_S: Final = 0.005
"""How long the search may block the event loop. The search for one shape may take longer."""
_SLICES: Final = 10
_PAUSE_S: Final = 0.02
_ANSWER_S: Final = 3.0
_SETTLE_S: Final = 0.03
"""The wait before a nomination is written. kube-scheduler clears a nomination that it receives
while it is still trying the pod."""
_TRIES: Final = 5
_RETRY_S: Final = 1.0
_NOT_THERE: Final = frozenset({404, 409, 422})
"""Answers for a pod that need not be requeued: it is gone, replaced (422: its UID) or bound."""


class Requeuer:
    """Requeues pods. clock: monotonic seconds."""

    def __init__(
        self,
        queue: Unschedulable,
        sampling: Sampling,
        kube: Kube,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._queue = queue
        self._sampling = sampling
        self._kube = kube
        self._metrics = metrics
        self._clock = clock

    async def run(self, missed: asyncio.Queue[Requeue]) -> None:
        """Requeue the pods that `Sampling` puts into the queue, until cancelled."""
        async with asyncio.TaskGroup() as writes:
            while True:
                writes.create_task(self._requeue_missed(await missed.get()))

    async def requeue_due(self) -> None:
        """Requeue pods that fit now. Call it each second if this process may bind."""
        for _ in range(_SLICES):
            now_s = self._clock()
            if self._queue.work(now_s, self._until(now_s + SLICE_S)):
                break
            await asyncio.sleep(_PAUSE_S)
        due = iter(self._queue.due(self._until(self._clock() + SLICE_S)))
        for pending in due:
            error = await self._write(pending, {"metadata": _seen(pending)}, "capacity")
            if error is None:
                continue
            if error.status in _NOT_THERE:
                self._queue.remove(pending.uid)
                continue
            for each in (pending, *due):  # writes for the other pods would fail as well
                self._queue.again(each.uid)

    async def _requeue_missed(self, due: Requeue) -> None:
        await asyncio.sleep(_SETTLE_S)
        for _ in range(_TRIES):
            error = await self._write(due.pending, requeueing(due), "sample")
            if error is None:
                return
            if error.status in _NOT_THERE:
                break
            await asyncio.sleep(_RETRY_S)
        self._sampling.failed(due.pending.uid)

    async def _write(self, pending: Pending, patch: Any, cause: str) -> KubeError | None:
        try:
            await self._kube.patch(f"{pending.path}/status", patch, timeout_s=_ANSWER_S)
        except KubeError as error:
            if error.status not in _NOT_THERE:
                _LOG.warning(Line("pod not requeued", pod=pending.pod_key, error=error))
            return error
        self._metrics.requeued.labels(cause).inc()
        _LOG.info(Line("pod requeued", pod=pending.pod_key, cause=cause))
        return None

    def _until(self, end_s: float) -> Callable[[], bool]:
        return lambda: self._clock() >= end_s


def requeueing(due: Requeue) -> Any:
    """Return the patch of the pod's status that requeues it."""
    patch = {"metadata": _seen(due.pending)}
    if due.nominated is not None:
        patch["status"] = {"nominatedNodeName": due.nominated or None}
    return patch


def _seen(pending: Pending) -> Any:
    """Return metadata that changes the pod, because kube-scheduler retries only a changed pod."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"uid": pending.uid, "annotations": {names.ANNOTATION_REQUEUED_AT: now}}
