"""Has kube-scheduler try pods again for which room has come, where it did not by itself.

It tries a refused pod again when the pod changes: so a pod that fits is annotated with the time at
which that was seen, through its status, which kube-scheduler's account may patch. Done by the one
that may bind; a pod that is gone or another of the name is left alone. See docs/adr/0025.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Protocol
from urllib.parse import quote

from contract import names
from contract.log_lines import Line
from kube.client import KubeError
from scheduler.metrics import Metrics
from scheduler.pending import Pending
from scheduler.waiting import Waiting

_LOG: Final = logging.getLogger(__name__)

_ANSWER_S: Final = 3.0
_NOT_THERE: Final = frozenset({404, 409, 422})
"""422: another pod of that name, whose UID cannot be changed."""


class Client(Protocol):
    """What is needed of `kube.Kube`."""

    async def patch(self, path: str, body: Any, *, timeout_s: float = ...) -> Any: ...


class Waker:
    """clock: monotonic seconds. now: the time of day, which is written."""

    def __init__(
        self,
        waiting: Waiting,
        kube: Client,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._waiting = waiting
        self._kube = kube
        self._metrics = metrics
        self._clock = clock
        self._now = now

    async def tend(self) -> None:
        """To be called every second, by whoever may bind."""
        for asked in self._waiting.overdue(self._clock()):
            try:
                await self._kube.patch(_path(asked), self._seen(asked), timeout_s=_ANSWER_S)
            except KubeError as error:
                if error.status in _NOT_THERE:
                    self._waiting.forget(asked.uid)
                    continue
                _LOG.warning(Line("room", pod=asked.whose, told="no", error=error))
                return  # nor would the others be told
            self._metrics.woken.inc()
            _LOG.info(Line("room", pod=asked.whose, told="kube-scheduler"))

    def _seen(self, asked: Pending) -> Any:
        at = self._now().isoformat(timespec="seconds").replace("+00:00", "Z")
        annotations = {names.ANNOTATION_ROOM_SEEN: at}
        return {"metadata": {"uid": asked.uid, "annotations": annotations}}


def _path(asked: Pending) -> str:
    namespace, name = quote(asked.namespace, safe=""), quote(asked.name, safe="")
    return f"/api/v1/namespaces/{namespace}/pods/{name}/status"
