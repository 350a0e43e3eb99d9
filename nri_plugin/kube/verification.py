"""Compares each running grant with the API server's pod, twice a second.

The pods come from bound_pods.py, and the running containers from the ledger. A container whose
grant does not match keeps running, and a metric, the log and an event report it. The pod's next
container is refused at creation. Missing information never counts as a mismatch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

from gpuslice.contract import names
from gpuslice.kube.log_lines import Line
from nri_plugin.containers.parts import Parts
from nri_plugin.policy.ledger import Hold, claimed
from nri_plugin.policy.notices import Notice
from nri_plugin.policy.refusals import Refusal

_LOG: Final = logging.getLogger(__name__)

WITHIN_S: Final = 2.0
"""Time without an API server after which an unconfirmed grant is logged."""
ABSENT_S: Final = 60.0
"""Time after which a container's pod that the watch does not report counts as not found. The watch
reports a new pod within seconds. The containers of a pod that was deleted by force stop earlier."""
_NAMED_MAX: Final = 4
_POD_NOT_FOUND: Final = (
    "container whose pod the API server does not have: find the component that created it"
)
_NO_POD: Final = "the API server lists no such pod that is bound to this node and has not ended"


class GrantState(StrEnum):
    """The result of comparing a running grant. Its values are the metric's labels."""

    CONFIRMED = "confirmed"
    MISMATCH = "mismatch"
    """The API server's pod does not have this grant."""
    POD_NOT_FOUND = "pod_not_found"
    """The API server has no such pod on this node."""
    UNKNOWN = "unknown"
    """The API server does not answer, or the pod has been absent for less than ABSENT_S."""


class Verification:
    """Compares the running grants. clock: a monotonic clock in seconds."""

    def __init__(self, parts: Parts, clock: Callable[[], float] = time.monotonic) -> None:
        self._parts = parts
        self._bound_pods = parts.bound_pods
        self._clock = clock
        self._watching = False
        self._absent_since_s: dict[str, float] = {}
        """The time since which the watch has not reported a container's pod, by container ID. A
        change of `_watching` resets these times."""
        self._late = False

    def check(self, watching: bool) -> None:
        """Compare all running grants with the current pods. watching: whether the watch of this
        node's pods is in sync with the API server."""
        ledger, gpus = self._parts.ledger, self._parts.inventory.gpus
        holds = ledger.holds()
        self._note_absent(holds, watching)
        mismatch = {**self._bound_pods.over(gpus, ledger.pod_uids()), **self._bound_pods.foreign()}
        states = []
        for hold in holds:
            if shares := claimed(hold.key):
                refusal = self._parts.claims.devices.unprepared(hold.pod_uid, shares)
            else:
                refusal = mismatch.get(hold.pod_uid) or self._bound_pods.mismatch(hold, gpus)
            states.append(self._state_of(hold, refusal))
            if refusal is not None:  # the container keeps running
                text = (
                    f'container "{hold.container}" runs with a GPU share that would be refused now:'
                    f" {refusal.text}"
                )
                self._report("grant mismatch", names.EVENT_GRANT_REFUSED, hold, text, refusal.text)
            elif states[-1] is GrantState.POD_NOT_FOUND:
                self._report_not_found(hold)
        for state in GrantState:
            self._parts.metrics.grants.labels(state.value).set(states.count(state))
        self._log_unknown([hold for hold in holds if not watching and self._absent(hold, WITHIN_S)])

    def _note_absent(self, holds: Sequence[Hold], watching: bool) -> None:
        if watching is not self._watching:
            self._watching, self._absent_since_s = watching, {}
        now_s, since_s = self._clock(), self._absent_since_s
        absent = [hold for hold in holds if self._bound_pods.pod(hold.pod_uid) is None]
        self._absent_since_s = {h.container_id: since_s.get(h.container_id, now_s) for h in absent}

    def _absent(self, hold: Hold, least_s: float) -> bool:
        since_s = self._absent_since_s.get(hold.container_id)
        return since_s is not None and self._clock() - since_s >= least_s

    def _state_of(self, hold: Hold, refusal: Refusal | None) -> GrantState:
        if self._watching and self._absent(hold, ABSENT_S):
            return GrantState.POD_NOT_FOUND
        if hold.container_id in self._absent_since_s:
            return GrantState.UNKNOWN
        return GrantState.CONFIRMED if refusal is None else GrantState.MISMATCH

    def _log_unknown(self, late: Sequence[Hold]) -> None:
        keys = [hold.container_key for hold in late[:_NAMED_MAX]]
        more = [f"and {len(late) - len(keys)} more"] if len(late) > len(keys) else []
        text = f"grants that the API server has not confirmed: {', '.join(keys + more)}"
        self._parts.readiness.grants = (text,) if late else ()
        if late and not self._late:
            _LOG.warning(Line("grants not confirmed yet", containers=text))
        elif self._late and not late:
            _LOG.info(Line("no grant waits for an answer of the API server"))
        self._late = bool(late)

    def _report_not_found(self, hold: Hold) -> None:
        text = (
            f"container {hold.container_key} (pod UID {hold.pod_uid}) holds a share of a GPU, but"
            f" {_NO_POD}; find the component that created it"
        )
        self._report(_POD_NOT_FOUND, names.EVENT_GRANT_UNCONFIRMED, hold, text, _NO_POD)

    def _report(self, message: str, reason: str, hold: Hold, text: str, problem: str) -> None:
        """Report a container once, in the log and in an event. The event is for the node if the API
        server does not have the pod."""
        of_node = reason == names.EVENT_GRANT_UNCONFIRMED
        action = "Start" if of_node else "Run"
        notice = Notice(hold.pod, hold.container_id, reason, text, of_node, action)
        if self._parts.notices.add(notice):
            fields = hold.pod.log_fields(hold.container, hold.container_id)
            _LOG.error(Line(message, **fields, problem=problem))
