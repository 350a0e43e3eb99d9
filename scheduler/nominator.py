"""Writes the backlog's nominations to the pods' status, several at a time.

Only the process that may bind does so, with kube-scheduler's account. A pod that changed since it
was read is left alone: another component may have nominated a node for it. Where the API server
refuses the field, nothing is written for a while, and pods are scheduled as without nominations.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from contract import names
from kube.client import KubeError
from kube.log_lines import Line
from scheduler.decisions.nomination import Backlog, Nomination, Outcome
from scheduler.kubernetes.requests import at
from scheduler.kubernetes.waiting import nomination
from scheduler.metrics import Metrics

_LOG: Final = logging.getLogger(__name__)

MAX_WRITES: Final = 48
"""At a time. More than Bindings (binder.MAX_POSTS): kube-scheduler takes a nominated pod in two
milliseconds and searches for any other in tens, so the writes must stay ahead of it."""
PAUSE_S: Final = 0.02
SLICE_S: Final = 0.005
"""How long one choice of nodes may block the event loop."""
OFF_S: Final = 300.0
"""Without nominations, after the API server refused one for good."""
_ANSWER_S: Final = 3.0
_REFUSED: Final = frozenset({400, 403, 405})
"""Not of this pod alone: the account lacks the permission, or a policy refuses the field."""


class Client(Protocol):
    """The methods of `kube.Kube` that are used here."""

    async def patch(
        self, path: str, body: Any, *, timeout_s: float = ..., fieldManager: str = ...
    ) -> Any: ...


class Nominator:
    """See the module. may_write: whether this process may bind. clock: the backlog's."""

    def __init__(
        self,
        backlog: Backlog,
        kube: Client,
        may_write: Callable[[], bool],
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._backlog = backlog
        self._kube = kube
        self._may_write = may_write
        self._metrics = metrics
        self._clock = clock
        self._writes: dict[str, asyncio.Task[None]] = {}
        """In progress, by the pod's UID."""
        self._off_until_s = float("-inf")

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            while True:
                await asyncio.sleep(PAUSE_S)
                self.tend()
        finally:
            for write in self._writes.values():
                write.cancel()

    async def settled(self, uid: str) -> None:
        """Returns once no nomination of the pod is being written: a Binding names the version that
        the write changes. Bounded by the write's own timeout."""
        write = self._writes.get(uid)
        if write is not None:
            await asyncio.wait((write,))

    def tend(self) -> None:
        """Starts the writes that are due."""
        self._report()
        now_s = self._clock()
        most = MAX_WRITES - len(self._writes)
        if most <= 0 or now_s < self._off_until_s or not self._may_write():
            return
        for each in self._backlog.plan(most, lambda: self._clock() - now_s > SLICE_S):
            self._writes[each.pending.uid] = asyncio.create_task(self._write(each))

    async def _write(self, wanted: Nomination) -> None:
        pending = wanted.pending
        body = nomination(pending, wanted.node)
        try:
            path = f"{pending.path}/status"
            manager = names.SCHEDULER_NAME
            made = await self._kube.patch(path, body, timeout_s=_ANSWER_S, fieldManager=manager)
            after = at(made, "metadata").get("resourceVersion")
            self._backlog.written(pending.uid, pending.version, str(after))
        except KubeError as error:
            self._backlog.failed(pending.uid)
            if error.status in _REFUSED:
                self._off_until_s = self._clock() + OFF_S
                _LOG.warning(Line("nominations paused", pod=pending.pod_key, error=error))
        finally:
            del self._writes[pending.uid]

    def _report(self) -> None:
        counts = self._backlog.counts
        for outcome in Outcome:
            if counts[outcome]:
                self._metrics.nominations.labels(outcome.value).inc(counts[outcome])
        counts.clear()
        leads_s = self._backlog.leads_s
        for lead_s in leads_s:
            self._metrics.nomination_lead.observe(lead_s)
        leads_s.clear()
