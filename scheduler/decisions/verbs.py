"""Answers kube-scheduler: which candidate nodes fit, and how good each is.

Pure, over the state. `filter` returns only the best few feasible nodes, because kube-scheduler
scores each returned node itself; it returns all of them if the pod has preferences. If none fits,
it gives one text per reason for all nodes of that reason. Bytes in, bytes out: this runs for every
pod over all nodes. kube-scheduler calls `preempt` before it deletes pods (docs/adr/0028).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, Final

import orjson

from scheduler.core.fit import feasible, fit, texts
from scheduler.core.fleet import Rows
from scheduler.core.place import Placement, place
from scheduler.core.reasons import UNRESOLVABLE
from scheduler.core.request import Policy, Request
from scheduler.core.reservations import Kind
from scheduler.core.score import best, levels, score
from scheduler.decisions.eviction import Eviction
from scheduler.decisions.requeue import Unschedulable
from scheduler.decisions.sampling import Sampling
from scheduler.decisions.state import State
from scheduler.kubernetes.arguments import Reader, Victims
from scheduler.kubernetes.requests import Pending

MAX_NODES: Final = 32
"""Number of nodes that `filter` returns."""
_MAX_RECENT: Final = 8192
"""Pods between filter and bind: a few, unless bind waits for volumes."""
_BEST: Final = 10
"""kube-scheduler's MaxExtenderPriority."""
_PERCENT: Final = "\N{FULLWIDTH PERCENT SIGN}"
"""For the sign in a user's value: kube-scheduler uses the text as a Go format for its Event."""


class Verbs:
    """policies: by profile (schedulerName), for pods without a policy annotation. retries: receives
    the pods that are refused for lack of capacity. sampling: requeues pods that fit outside of
    kube-scheduler's sample."""

    def __init__(
        self,
        state: State,
        policies: Mapping[str, Policy] | None = None,
        retries: Unschedulable | None = None,
        sampling: Sampling | None = None,
    ) -> None:
        self._state = state
        self._policies = policies or {}
        self._retries = Unschedulable(state) if retries is None else retries
        self._sampling = Sampling(state) if sampling is None else sampling
        self._reader = Reader(state.dialects)
        self._recent: dict[str, Pending] = {}

    def filter(self, body: bytes) -> bytes:
        """ExtenderFilterResult. Raises ArgumentsError."""
        # 1. Read the call.
        pending, names = self._reader.arguments(body)
        self._store(pending)
        self._retries.remove(pending.uid)
        # 2. Answer for a pod that needs no choice.
        if pending.refusal:
            refused = dict.fromkeys(names, pending.refusal.replace("%", _PERCENT))
            return orjson.dumps({"NodeNames": [], "FailedAndUnresolvableNodes": refused})
        if pending.request is None:
            return _accepted(names)
        if self._state.is_bound(pending.uid):
            return error(f"the pod is bound to {self._state.node_of(pending.uid)}")
        # 3. Return only the node where GPUs are held or reserved for the pod.
        node = self._own_node(pending, pending.request, names)
        if node:
            return _accepted([node])
        # 4. Evaluate each node, then without reservations of other pods.
        rows = self._state.fleet.rows_of(names)
        self._sampling.observe(pending, rows)
        fitting = self._fitting(pending.request, rows)
        # 5. Refuse the pod, and queue it for a retry.
        if not len(fitting):
            self._retries.refuse(pending, pending.request, self._sampling.accepted(pending, rows))
            self._sampling.refuse(pending, pending.request, rows, self.policy(pending))
            return self._refusal(pending.request, names, rows)
        # 6. Return the best nodes, or all if kube-scheduler weighs the pod's preferences.
        return _accepted(self._nodes(pending, pending.request, fitting))

    def prioritize(self, body: bytes) -> bytes:
        """HostPriorityList. Raises ArgumentsError."""
        pending, names = self._reader.arguments(body)
        self._store(pending)
        if pending.request is None or not names:
            return b"[]"
        if self._kept(pending.uid, names):
            kept = self._state.node_of(pending.uid)
            return _priorities(names, [_BEST if name == kept else 0 for name in names])
        self._state.reservations.end(pending.uid)
        rows = self._state.fleet.rows_of(names)
        scores = score(self._state.fleet, pending.request, rows, self.policy(pending))
        self._reserve(pending, pending.request, names[int(scores.argmax())])
        return _priorities(names, levels(scores, _BEST).tolist())

    def preempt(self, body: bytes) -> Iterator[bytes]:
        """ExtenderPreemptionResult: the nodes on which the pod fits once the victims are gone, with
        the same victims. In parts, some of them empty: the caller may yield the event loop after
        each, and none takes long, however many victims there are. Raises ArgumentsError."""
        pending, listed = self._reader.preemption(body)
        eviction = Eviction(self._state.fleet, self._state.allocations)
        parts: deque[Mapping[str, Victims]] = deque()
        for victims in listed:
            parts.append(victims)
            eviction.add({node: each.uids for node, each in victims.items()})
            yield b""
        names = [node for victims in parts for node in victims]
        enough = self._enough(pending, names, eviction)
        yield b'{"NodeNameToMetaVictims":{'
        between = b""
        while parts:
            kept = {node: each.received for node, each in parts.popleft().items() if node in enough}
            if kept:
                yield between + orjson.dumps(kept)[1:-1]
                between = b","
        yield b"}}"

    def pending_pod(self, uid: str) -> Pending | None:
        """The pod as of the last verb for it; None: too long ago, or never."""
        return self._recent.get(uid)

    def policy(self, pending: Pending) -> Policy:
        """The policy for the pod: its own, or the profile's."""
        return self._policies.get(pending.profile, Policy.BINPACK)

    def _reserve(self, pending: Pending, request: Request, node: str) -> None:
        """Reserves the GPUs, so that the next pods are ranked as if this pod were bound there."""
        if self._state.node_of(pending.uid) is not None:
            return
        fleet = self._state.fleet
        placement = place(fleet, request, fleet.row_of(node), self.policy(pending))
        if isinstance(placement, Placement):
            self._state.reserve(pending.uid, request, placement, Kind.RANKED)

    def _store(self, pending: Pending) -> None:
        self._recent.pop(pending.uid, None)
        self._recent[pending.uid] = pending
        if len(self._recent) > _MAX_RECENT:
            del self._recent[next(iter(self._recent))]

    def _enough(self, pending: Pending, names: Sequence[str], eviction: Eviction) -> Container[str]:
        """Evicts no pod for a pod that is refused or has a nominated node; for one with GPUs, only
        on the node where these are. names: of the nodes with victims."""
        if pending.refusal or self._state.reservations.nominated_node(pending.uid):
            return ()
        if pending.request is None:
            return frozenset(names)
        node = self._state.node_of(pending.uid)
        if node is not None:
            return (node,) if self._kept(pending.uid, names) else ()
        fleet = eviction.remaining()
        fits = feasible(fleet, pending.request, fleet.rows_of(names))
        return frozenset(compress(names, fits.tolist()))

    def _kept(self, uid: str, names: Container[str]) -> bool:
        """Whether GPUs are held for the pod on one of the nodes: its Binding was sent and may have
        been applied. It is sent to the same node again; elsewhere the pod would need capacity
        twice."""
        assumed, fleet = self._state.assumed(uid), self._state.fleet
        if assumed is None or assumed.placement.node not in names:
            return False
        return not fleet.blocked_by[fleet.row_of(assumed.placement.node)]

    def _own_node(self, pending: Pending, request: Request, names: Sequence[str]) -> str:
        """The node to which the pod's Binding was sent, or where GPUs are reserved for it; "" if
        there is none among these. Ends a reservation that is not used."""
        state = self._state
        if self._kept(pending.uid, names):
            return state.node_of(pending.uid) or ""
        nominated = state.reservations.nominated_node(pending.uid)
        if len(names) == 1 or (nominated and nominated in names):
            node = nominated or names[0]
            reserved = state.reservations.placement(pending.uid, request, node)
            if reserved is not None:
                state.reserve(pending.uid, request, reserved, Kind.RANKED)
                return node
        if not nominated:
            state.reservations.end(pending.uid)
        return ""

    def _fitting(self, request: Request, rows: Rows) -> Rows:
        fleet, reservations = self._state.fleet, self._state.reservations
        fitting = rows[feasible(fleet, request, rows)]
        if not len(fitting):
            with reservations.lifted(rows) as again:
                fitting = again[feasible(fleet, request, again)]
        return fitting

    def _nodes(self, pending: Pending, request: Request, fitting: Rows) -> Sequence[str]:
        fleet = self._state.fleet
        if len(fitting) > MAX_NODES and not pending.prefers:
            scores = score(fleet, request, fitting, self.policy(pending))
            fitting = fitting[best(fleet, scores, fitting, MAX_NODES)]
        node_names = [fleet.names[row] for row in fitting.tolist()]
        if len(node_names) == 1:
            # kube-scheduler does not prioritize a single node.
            self._reserve(pending, request, node_names[0])
        return node_names

    def _refusal(self, request: Request, names: Sequence[str], rows: Rows) -> bytes:
        fleet = self._state.fleet
        _, reasons = fit(fleet, request, rows)
        text_by_reason = texts(fleet, request, rows, reasons)
        failed: dict[str, str] = {}
        unresolvable: dict[str, str] = {}
        for name, reason in zip(names, reasons.tolist(), strict=True):
            there = unresolvable if reason in UNRESOLVABLE else failed
            there[name] = text_by_reason[reason]
        answer = {
            "NodeNames": [],
            "FailedNodes": failed,
            "FailedAndUnresolvableNodes": unresolvable,
        }
        return orjson.dumps(answer)


def error(text: str) -> bytes:
    """ExtenderFilterResult or ExtenderBindingResult of a failed call."""
    return orjson.dumps({"Error": text})


def _accepted(names: Sequence[str]) -> bytes:
    return orjson.dumps({"NodeNames": names})


def _priorities(names: Sequence[str], scores: Sequence[int]) -> bytes:
    listed: list[dict[str, Any]] = [
        {"Host": name, "Score": each} for name, each in zip(names, scores, strict=True)
    ]
    return orjson.dumps(listed)
