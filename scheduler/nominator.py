"""Writes the backlog's nominations to the pods' status, several at a time.

Only the process that may bind does so, with kube-scheduler's account. A pod that changed since it
was read is left alone: another component may have nominated a node for it. Where the API server
refuses the field in a namespace, nothing is nominated there for a while, and pods are scheduled as
without nominations; withdrawals go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from contract import names
from kube.client import IGNORE, METADATA_ONLY, STRATEGIC_PATCH
from kube.errors import KubeError
from kube.fields import at
from kube.log_lines import Line
from scheduler.decisions.backlog import Backlog
from scheduler.decisions.nomination import Nomination, Outcome
from scheduler.kubernetes.requests import Pending
from scheduler.kubernetes.waiting import nomination
from scheduler.metrics import Metrics

_LOG: Final = logging.getLogger(__name__)

NOMINATES: Final[Mapping[str, str]] = {
    "kind": STRATEGIC_PATCH,
    "only": METADATA_ONLY,
    "fieldManager": names.SCHEDULER_NAME,
    "fieldValidation": IGNORE,
}
"""How `Kube.patch` sends a nomination. Only the pod's new version is read of the answer."""
MAX_WRITES: Final = 48
"""At a time. More than Bindings (binder.MAX_POSTS): kube-scheduler takes a nominated pod in two
milliseconds and searches for any other in tens, so the writes must stay ahead of it. While 16 other
writes are in progress, 256 nominations take 0.7 s; if 16 were written at a time, 1.1 s. Without
other writes they take 0.3 s either way."""
PAUSE_S: Final = 0.02
POLL_S: Final = 0.002
"""Poll interval of the nominations while an answer is delayed."""
SLICE_S: Final = 0.005
"""How long one choice of nodes may block the event loop."""
OFF_S: Final = 300.0
"""Without nominations in a namespace, after the API server refused REFUSALS there, one after the
other: the account lacks the permission, or a policy refuses the field. It refuses a single one of a
pod that was bound meanwhile, too."""
REFUSALS: Final = 4
_ANSWER_S: Final = 3.0
_REFUSED: Final = frozenset({400, 403, 405, 422})


class Client(Protocol):
    """The methods of `kube.Kube` that are used here."""

    async def patch(
        self,
        path: str,
        body: Any,
        *,
        kind: str = ...,
        only: str = ...,
        timeout_s: float = ...,
        **query: object,
    ) -> Any: ...


class Nominator:
    """See the module. may_write: whether this process may bind. clock: the backlog's. binding:
    number of pods whose Bindings are in progress."""

    def __init__(
        self,
        backlog: Backlog,
        kube: Client,
        may_write: Callable[[], bool],
        metrics: Metrics,
        clock: Callable[[], float],
        binding: Callable[[], int] = lambda: 0,
    ) -> None:
        self._backlog = backlog
        self._kube = kube
        self._may_write = may_write
        self._metrics = metrics
        self._clock = clock
        self._binding = binding
        self._writes: dict[str, asyncio.Task[None]] = {}
        """In progress, by the pod's UID."""
        self._refusals: Counter[str] = Counter()
        self._paused: dict[str, float] = {}
        """By namespace, until when."""

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            while True:
                await asyncio.sleep(PAUSE_S)
                self.write_due()
        finally:
            for write in self._writes.values():
                write.cancel()

    async def settled(self, uid: str) -> None:
        """Returns once no nomination of the pod is being written: a Binding names the version that
        the write changes. Bounded by the write's own timeout."""
        write = self._writes.get(uid)
        if write is not None:
            await asyncio.wait((write,))

    def hold(self) -> Awaitable[None] | None:
        """A wait before kube-scheduler gets its answer; None: no wait. kube-scheduler makes
        its calls one after the other, so it tries no other pod meanwhile."""
        hold_s = self._backlog.hold_s(self._binding())
        return self._hold(hold_s) if hold_s else None

    async def _hold(self, hold_s: float) -> None:
        began_s = self._clock()
        until_s = began_s + hold_s
        while not self._backlog.may_go_on(self._binding()) and self._clock() < until_s:
            self.write_due()
            await asyncio.sleep(POLL_S)
        self._backlog.answered()
        self._metrics.nomination_hold.inc(self._clock() - began_s)

    def write_due(self) -> None:
        """Starts the writes that are due."""
        self._report()
        now_s = self._clock()
        most = MAX_WRITES - len(self._writes)
        if most <= 0 or not self._may_write():
            return
        for namespace in [name for name, end_s in self._paused.items() if end_s <= now_s]:
            del self._paused[namespace]
        until_s = now_s + SLICE_S
        for each in self._backlog.plan(most, lambda: self._clock() > until_s, self._paused):
            self._writes[each.pending.uid] = asyncio.create_task(self._write(each))

    async def _write(self, wanted: Nomination) -> None:
        pending = wanted.pending
        body = nomination(pending, wanted.node)
        try:
            path = f"{pending.path}/status"
            made = await self._kube.patch(path, body, timeout_s=_ANSWER_S, **NOMINATES)
            after = at(made, "metadata").get("resourceVersion")
            self._backlog.written(wanted, str(after))
            self._refusals.pop(pending.namespace, None)
        except KubeError as error:
            self._backlog.failed(wanted)
            if wanted.node is not None and error.status in _REFUSED:
                self._refused(pending, error)
        finally:
            del self._writes[pending.uid]

    def _refused(self, pending: Pending, error: KubeError) -> None:
        namespace = pending.namespace
        self._refusals[namespace] += 1
        if self._refusals[namespace] < REFUSALS or namespace in self._paused:
            return
        del self._refusals[namespace]
        self._paused[namespace] = self._clock() + OFF_S
        _LOG.warning(Line("nominations paused", pod=pending.pod_key, error=error))

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
