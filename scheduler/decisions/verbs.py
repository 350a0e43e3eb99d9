"""Answers kube-scheduler: which candidate nodes fit, and how good each is.

`filter` returns only the best few feasible nodes, because kube-scheduler scores each returned node
itself. If the pod has preferences, `filter` returns all feasible nodes. If none is feasible, the
nodes of one reason get the same text. Calls and answers are bytes, for speed: each verb runs for
every pod over all nodes. kube-scheduler calls `preempt` before it deletes pods (docs/adr/0028).
"""

from __future__ import annotations

from collections.abc import Container, Generator, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import orjson

from scheduler.core.fit import feasible, fit, texts
from scheduler.core.fleet import Rows
from scheduler.core.place import Placement
from scheduler.core.request import Policy, Request
from scheduler.core.reservations import Kind, Nomination
from scheduler.core.score import best, levels, score
from scheduler.decisions.preemption import Preemption
from scheduler.decisions.requeue import Unschedulable
from scheduler.decisions.sampling import Sampling
from scheduler.decisions.state import State
from scheduler.kubernetes.arguments import Reader, Victims
from scheduler.kubernetes.requests import Pending

MAX_NODES: Final = 32
"""The most nodes that `filter` returns, except for a pod with preferences."""
_PART: Final = 500
"""How many nodes of a preemption are ranked before the event loop may run."""
_MAX_RECENT: Final = 8192
"""The most pods stored between filter and bind. There are few, unless bind waits for volumes."""
_BEST: Final = 10
"""The highest score that kube-scheduler accepts, its MaxExtenderPriority."""
_PERCENT: Final = "\N{FULLWIDTH PERCENT SIGN}"
"""Replaces a percent sign in a text, because kube-scheduler uses the text as a Go format."""


class Verbs:
    """The verbs. policies: by profile (schedulerName), for pods without a policy annotation.
    retries: gets the pods that are refused for lack of capacity. sampling: gets the refused pods
    too, and requeues those that fit on a node outside kube-scheduler's sample."""

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
        """Answer a filter call with an ExtenderFilterResult. Raise ArgumentsError."""
        # 1. Read the pod and the nodes' names.
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
        # 4. Evaluate each node. If none fits, evaluate again without reservations of pods of lower
        # priority.
        rows = self._state.fleet.rows_of(names)
        self._sampling.observe(pending, rows)
        fitting = self._fitting(pending, pending.request, rows)
        self._state.reservations.restore(pending.uid)
        # 5. Refuse the pod, and queue it for a retry.
        if not len(fitting):
            self._retries.refuse(pending, pending.request, self._sampling.accepted(pending, rows))
            self._sampling.refuse(pending, pending.request, rows, self.policy(pending))
            return self._refusal(pending, pending.request, names, rows)
        # 6. Return the best nodes, or all that fit if the pod has preferences.
        return _accepted(self._nodes(pending, pending.request, fitting))

    def prioritize(self, body: bytes) -> bytes:
        """Answer a prioritize call with a HostPriorityList. Raise ArgumentsError."""
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
        self._state.reservations.restore(pending.uid)
        return _priorities(names, levels(scores, _BEST, not pending.prefers).tolist())

    def preempt(self, body: bytes) -> Iterator[bytes]:
        """Yield b"" several times, and then an ExtenderPreemptionResult: the best node on which the
        pod fits once its victims are gone, with these victims. For a pod without a share yield all
        nodes and victims unchanged. Each step takes a short time, and the caller may let the event
        loop run in between. Raise ArgumentsError."""
        pending, listed = self._reader.preemption(body)
        offered: dict[str, Victims] = {}
        for victims in listed:
            offered.update(victims)
            yield b""
        kept = yield from self._preempt(pending, offered)
        yield orjson.dumps({"NodeNameToMetaVictims": kept})

    def _preempt(
        self, pending: Pending, offered: Mapping[str, Victims]
    ) -> Generator[bytes, None, Mapping[str, Any]]:
        """Return the victims by node. If GPUs are already held for the pod, only their node counts.
        No pod is evicted for a pod that is refused, or that is requeued with another node."""
        if pending.refusal or self._state.reservations.sampled_node(pending.uid):
            return {}
        if pending.request is None:
            return {node: victims.received for node, victims in offered.items()}
        held = self._state.node_of(pending.uid)
        if held is not None:
            is_kept = self._kept(pending.uid, offered)
            return {held: offered[held].received} if is_kept else {}
        search = Preemption(self._state, pending.uid, pending.request, pending.priority)
        left = iter(offered.items())
        while part := dict(islice(left, _PART)):
            search.offer(part)
            yield b""
        best = yield from search.best()
        if best is None:
            return {}
        terms = (best.node, pending.request, pending.priority, best.uids)
        self._state.expect(pending.uid, Nomination(*terms))
        if best.offered:
            return {best.node: offered[best.node].received}
        pods = [{"UID": uid} for uid in best.uids]
        return {best.node: {"Pods": pods, "NumPDBViolations": best.rank[0]}}

    def pending_pod(self, uid: str) -> Pending | None:
        """Return the pod as last sent with a verb; None if it was never sent or is dropped."""
        return self._recent.get(uid)

    def policy(self, pending: Pending) -> Policy:
        """Return the policy of the pod's profile, for a request that has none."""
        return self._policies.get(pending.profile, Policy.BINPACK)

    def _reserve(self, pending: Pending, request: Request, node: str) -> None:
        """Reserve GPUs on the node: later pods are then ranked as if this pod were bound there."""
        if self._state.node_of(pending.uid) is not None:
            return
        placement = self._state.place(pending, request, node, self.policy(pending))
        if isinstance(placement, Placement):
            self._state.reserve(pending, request, placement, Kind.RANKED)

    def _store(self, pending: Pending) -> None:
        self._recent.pop(pending.uid, None)
        self._recent[pending.uid] = pending
        if len(self._recent) > _MAX_RECENT:
            del self._recent[next(iter(self._recent))]

    def _kept(self, uid: str, names: Container[str]) -> bool:
        """Return whether GPUs are held for the pod on one of these nodes, because its Binding was
        sent and may have been applied. The Binding is then sent to the same node again: on another
        node, the pod would hold capacity twice."""
        assumed, fleet = self._state.assumed.get(uid), self._state.fleet
        if assumed is None or assumed.placement.node not in names:
            return False
        return not fleet.blocked_by[fleet.row_of(assumed.placement.node)]

    def _own_node(self, pending: Pending, request: Request, names: Sequence[str]) -> str:
        """Return the named node to which the pod's Binding was sent or where GPUs are reserved for
        it, or "" if there is none. End a reservation that is not used."""
        state = self._state
        if self._kept(pending.uid, names):
            return state.node_of(pending.uid) or ""
        nominated = state.reservations.sampled_node(pending.uid)
        if len(names) == 1 or (nominated and nominated in names):
            node = nominated or names[0]
            reserved = state.reservations.placement(pending.uid, request, node)
            if reserved is not None:
                state.reserve(pending, request, reserved, Kind.RANKED)
                return node
        if not nominated:
            state.reservations.end(pending.uid)
        return ""

    def _fitting(self, pending: Pending, request: Request, rows: Rows) -> Rows:
        fleet, reservations = self._state.fleet, self._state.reservations
        fitting = rows[feasible(fleet, request, rows)]
        if not len(fitting):
            with reservations.lifted(rows, pending.priority) as again:
                fitting = again[feasible(fleet, request, again)]
        return fitting

    def _nodes(self, pending: Pending, request: Request, fitting: Rows) -> Sequence[str]:
        fleet = self._state.fleet
        if len(fitting) > MAX_NODES and not pending.prefers:
            scores = score(fleet, request, fitting, self.policy(pending))
            fitting = fitting[best(fleet, scores, fitting, MAX_NODES)]
        node_names = [fleet.names[row] for row in fitting.tolist()]
        if len(node_names) == 1:
            # kube-scheduler does not call `prioritize` for a single node.
            self._reserve(pending, request, node_names[0])
        return node_names

    def _refusal(
        self, pending: Pending, request: Request, names: Sequence[str], rows: Rows
    ) -> bytes:
        """Refuse the nodes as unresolvable: the totals of these nodes have room, so kube-scheduler
        finds no victims there, and would report that as an error. Of the nominated node it would
        conclude that the pod may preempt again, although victims may be terminating there."""
        fleet = self._state.fleet
        _, reasons = fit(fleet, request, rows)
        text_by_reason = texts(fleet, request, rows, reasons)
        refused = {n: text_by_reason[r] for n, r in zip(names, reasons.tolist(), strict=True)}
        nominated = {n: refused.pop(n) for n in (pending.nominated,) if n in refused}
        answer = {"NodeNames": [], "FailedNodes": nominated, "FailedAndUnresolvableNodes": refused}
        return orjson.dumps(answer)


def error(text: str) -> bytes:
    """Return the ExtenderFilterResult or ExtenderBindingResult of a failed call."""
    return orjson.dumps({"Error": text})


def _accepted(names: Sequence[str]) -> bytes:
    return orjson.dumps({"NodeNames": names})


def _priorities(names: Sequence[str], scores: Sequence[int]) -> bytes:
    listed: list[dict[str, Any]] = [
        {"Host": name, "Score": each} for name, each in zip(names, scores, strict=True)
    ]
    return orjson.dumps(listed)
