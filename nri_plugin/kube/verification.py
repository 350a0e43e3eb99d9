"""Compares each running grant with the API server's pod, twice a second.

Its only I/O is the log: bound_pods.py has the API server's state, the ledger the running
containers. A mismatched grant keeps running, and is reported in a metric, the log and an event; the
pod's next container is refused at creation. pod_requests.py looks up pods that the watch has not
reported. Missing information never refutes a grant.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from contract import names
from kube.log_lines import Line
from nri_plugin.metrics import Metrics
from nri_plugin.policy.bound_pods import BoundPods
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Gpu, Pod
from nri_plugin.policy.notices import Notice, Notices
from nri_plugin.policy.refusals import Refusal
from nri_plugin.readiness import Readiness

_LOG: Final = logging.getLogger(__name__)

WITHIN_S: Final = 2.0
"""Time after which an unconfirmed grant is reported."""
_ENDING_S: Final = 60.0
"""For a pod whose object was force-deleted while its containers still stop."""
_NAMED_AT_MOST: Final = 4
_POD_NOT_FOUND: Final = (
    "container whose pod the API server does not have: find the component that created it"
)


class GrantState(StrEnum):
    """Result for a running grant; values are the metric's label."""

    CONFIRMED = "confirmed"
    MISMATCH = "mismatch"
    """The API server's pod does not have this grant."""
    POD_NOT_FOUND = "pod_not_found"
    """The API server has no such pod on this node, so there is no object to delete."""
    UNKNOWN = "unknown"
    """The API server has not answered."""


class Verification:
    """holds: what containers hold. clock: monotonic, in seconds."""

    def __init__(
        self,
        bound_pods: BoundPods,
        holds: Callable[[], Sequence[Hold]],
        gpus: Callable[[], Sequence[Gpu]],
        notices: Notices,
        readiness: Readiness,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._bound_pods = bound_pods
        self._holds = holds
        self._gpus = gpus
        self._notices = notices
        self._readiness = readiness
        self._metrics = metrics
        self._clock = clock
        self._since: dict[str, float] = {}
        """By container, when its pod was first found to be unknown."""
        self._late = False
        self.over: Mapping[str, Refusal] = {}
        """By UID, the pods that were bound to a full GPU."""
        self.unknown: Sequence[Pod] = ()
        """Pods with running grants that must be looked up."""

    def check(self) -> None:
        """Judge all running grants by the current state."""
        holds, gpus, now_s = self._holds(), self._gpus(), self._clock()
        holding = frozenset(hold.pod_uid for hold in holds)
        self.over = self._bound_pods.over(gpus, holding)
        mismatch = {**self.over, **self._bound_pods.foreign()}
        states: dict[str, GrantState] = {}
        for hold in holds:
            refusal = mismatch.get(hold.pod_uid) or self._bound_pods.mismatch(hold, gpus)
            states[hold.container_id] = self._state_of(hold, refusal)
            if refusal is not None:  # reported only: the container keeps running
                text = (
                    f'container "{hold.container}" runs with a GPU share that would be refused now:'
                    f" {refusal.text}"
                )
                self._report("grant mismatch", names.EVENT_GRANT_REFUSED, hold, text, refusal.text)
        self._note(holds, states, now_s)

    def _state_of(self, hold: Hold, refusal: Refusal | None) -> GrantState:
        if self._bound_pods.denied(hold.pod_uid):
            return GrantState.POD_NOT_FOUND
        if self._bound_pods.confirmed(hold.pod_uid) is None:
            return GrantState.UNKNOWN
        return GrantState.CONFIRMED if refusal is None else GrantState.MISMATCH

    def _note(self, holds: Sequence[Hold], states: Mapping[str, GrantState], now_s: float) -> None:
        unknown = [h for h in holds if states[h.container_id] is GrantState.UNKNOWN]
        self._since = {h.container_id: self._since.get(h.container_id, now_s) for h in unknown}
        by_uid = {h.pod_uid: h for h in unknown if self._is_due(h, now_s)}
        self.unknown = [h.pod for h in by_uid.values() if self._bound_pods.unknown(h.pod)]
        for state in GrantState:
            count = sum(each is state for each in states.values())
            self._metrics.grants.labels(state.value).set(count)
        self._log_unknown([h for h in unknown if now_s - self._since[h.container_id] >= WITHIN_S])
        for hold in holds:
            if states[hold.container_id] is GrantState.POD_NOT_FOUND:
                problem = self._bound_pods.denied(hold.pod_uid)
                text = (
                    f"container {hold.container_key} (pod UID {hold.pod_uid}) holds a share of a"
                    f" GPU, but the API server has no such pod on this node: {problem}; find the"
                    " component that created it"
                )
                self._report(_POD_NOT_FOUND, names.EVENT_GRANT_UNCONFIRMED, hold, text, problem)

    def _is_due(self, hold: Hold, now_s: float) -> bool:
        """Delay the lookup of a pod just deleted until its containers should have stopped."""
        gone = self._bound_pods.gone(hold.pod_uid)
        return not gone or now_s - self._since[hold.container_id] >= _ENDING_S

    def _log_unknown(self, late: Sequence[Hold]) -> None:
        late = [hold for hold in late if not self._bound_pods.gone(hold.pod_uid)]
        named = [hold.container_key for hold in late[:_NAMED_AT_MOST]]
        more = [f"and {len(late) - len(named)} more"] if len(late) > len(named) else []
        text = f"grants that the API server has not confirmed: {', '.join(named + more)}"
        self._readiness.grants = (text,) if late else ()
        if late and not self._late:
            _LOG.warning(Line("grants not confirmed yet", containers=text))
        elif self._late and not late:
            _LOG.info(Line("each grant is confirmed, or does not match its pod"))
        self._late = bool(late)

    def _report(self, message: str, reason: str, hold: Hold, text: str, problem: str) -> None:
        """Report once, in the log and in an event; in the node's if the pod does not exist."""
        of_node = reason == names.EVENT_GRANT_UNCONFIRMED
        action = "Start" if of_node else "Run"
        if self._notices.add(Notice(hold.pod, hold.container_id, reason, text, of_node, action)):
            _LOG.error(
                Line(
                    message,
                    **hold.pod.log_fields,
                    container=hold.container,
                    container_id=hold.container_id,
                    problem=problem,
                )
            )
