"""Requeues pods for which capacity became available, where kube-scheduler did not retry by itself.

kube-scheduler retries a refused pod when the pod changes. So a pod that fits gets an annotation
with the time of that finding, in a patch of its status, which kube-scheduler's account may write.
Only the process that may bind does so. A pod that is gone or was replaced is left alone. The search
yields the event loop every few milliseconds. See docs/adr/0025.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from contract import names
from kube.client import Kube
from kube.errors import KubeError
from kube.log_lines import Line
from scheduler.decisions.requeue import Unschedulable
from scheduler.kubernetes.requests import Pending
from scheduler.metrics import Metrics

_LOG: Final = logging.getLogger(__name__)

SLICE_S: Final = 0.005
"""How long the search may block the event loop; the search of one node may exceed it."""
_SLICES: Final = 10
_PAUSE_S: Final = 0.02
_ANSWER_S: Final = 3.0
_NOT_THERE: Final = frozenset({404, 409, 422})
"""422: another pod has the name, and its UID cannot be changed."""


class Requeuer:
    """clock: monotonic seconds."""

    def __init__(
        self, queue: Unschedulable, kube: Kube, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        self._queue = queue
        self._kube = kube
        self._metrics = metrics
        self._clock = clock

    async def requeue_due(self) -> None:
        """Call every second in the process that may bind."""
        for _ in range(_SLICES):
            now_s = self._clock()
            if self._queue.work(now_s, self._until(now_s + SLICE_S)):
                break
            await asyncio.sleep(_PAUSE_S)
        for pending in self._queue.due(self._until(self._clock() + SLICE_S)):
            try:
                path = f"{pending.path}/status"
                await self._kube.patch(path, _seen(pending), timeout_s=_ANSWER_S)
            except KubeError as error:
                if error.status in _NOT_THERE:
                    self._queue.remove(pending.uid)
                    continue
                _LOG.warning(Line("pod not requeued", pod=pending.pod_key, error=error))
                return  # the others would fail as well
            self._metrics.requeued.inc()
            _LOG.info(Line("pod requeued", pod=pending.pod_key))

    def _until(self, end_s: float) -> Callable[[], bool]:
        return lambda: self._clock() >= end_s


def _seen(pending: Pending) -> Any:
    at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    annotations = {names.ANNOTATION_REQUEUED_AT: at}
    return {"metadata": {"uid": pending.uid, "annotations": annotations}}
