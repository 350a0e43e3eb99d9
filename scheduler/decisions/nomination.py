"""Pods that wait for kube-scheduler's first try, and the nodes nominated for them.

Pure, over the state. With a node nominated, kube-scheduler looks at that node alone instead of all.
The backlog chooses nodes in kube-scheduler's order (priority, then time), reserves the GPUs, and
stays a bounded window ahead. kube-scheduler decides: it verifies the node, and searches by itself
where it refuses.

Which nodes pass kube-scheduler's own filters is learned from kube-scheduler: the nodes that it
sends with `filter` are the candidates of all pods with equal constraints, until a later call. So
the first pod of each kind is never nominated, and no selector, taint or amount of processors is
evaluated twice.

The watch adds and removes pods; `verbs` reports kube-scheduler's calls; `nominator` writes. A
nomination by preemption or by another component is left alone. See docs/adr/0050.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from math import ceil
from typing import Final

from contract import names
from scheduler.core.fit import feasible
from scheduler.core.fleet import Rows
from scheduler.core.place import Placement, place
from scheduler.core.reasons import Reason
from scheduler.core.request import Policy, Shape
from scheduler.core.score import best, score
from scheduler.core.search import MOST_STEPS
from scheduler.decisions.state import State
from scheduler.kubernetes.requests import Pending
from scheduler.kubernetes.waiting import Waiting

WRITE_S: Final = 0.05
TURN_S: Final = 0.01
"""Assumed for a nomination's write, and for a pod's turn in kube-scheduler, until measured. A pod
without a nomination takes longer: kube-scheduler searches all nodes."""
MOST_HEAD: Final = 64
REST_S: Final = 0.25
"""Where kube-scheduler has tried none of several pods for so long, it is halted or has others to
try first, and nominations of the foremost pods come in time, too."""
FEW: Final = 8
"""So few pods are left to kube-scheduler's search."""
_NEWEST: Final = 1 / 8
"""Weight of the newest measurement."""
MIN_NODES: Final = 500
"""With fewer nodes, kube-scheduler's search costs less than the write."""
WINDOW: Final = 256
"""Nominated pods that kube-scheduler has not tried yet."""
DEADLINE_S: Final = 30.0
"""Then the nomination is withdrawn, and the GPUs are free for other pods."""
REFRESH_S: Final = 10.0
"""Then one pod of the kind is left to kube-scheduler's search, which shows the candidates anew."""
MAX_KINDS: Final = 256
"""Kinds whose candidates are known: 8 bytes per candidate each."""

_Order = tuple[int, str, int]
"""Sorts as kube-scheduler's queue: by priority, then by creation, then by arrival."""


class When(Enum):
    """Values of the option --nominate."""

    OFF = "off"
    BACKLOG = "backlog"
    ALWAYS = "always"


_LEAST_NODES: Final = {When.OFF: 0, When.BACKLOG: MIN_NODES, When.ALWAYS: 1}
"""Of the fleet; 0: nothing is nominated."""


class Outcome(Enum):
    """What became of a nomination."""

    NOMINATED = "nominated"
    CONFIRMED = "confirmed"
    """The pod was bound there."""
    LATE = "late"
    """kube-scheduler searched all nodes before it saw the nomination; the node is kept."""
    REFUSED = "refused"
    """kube-scheduler searched other nodes."""
    EXPIRED = "expired"
    """kube-scheduler did not try the pod in time."""
    FAILED = "failed"
    """The API server refused the write."""


@dataclass(frozen=True, slots=True)
class Nomination:
    """node None: withdraws the pod's nomination."""

    pending: Pending
    node: str | None


@dataclass(slots=True)
class _Pod:
    """arrived_s: when it was first observed. node: nominated, "" for none, since nominated_s.
    is_tried: kube-scheduler tried the pod, or it is left to kube-scheduler. written: the pod's
    versions before and after the nomination was written."""

    waiting: Waiting
    order: _Order
    arrived_s: float
    node: str = ""
    nominated_s: float = 0.0
    is_tried: bool = False
    written: tuple[str, str] = ("", "")


@dataclass(slots=True)
class _Kind:
    """Pods of equal constraints. queue: neither tried nor nominated, in order; entries of pods that
    changed are skipped. candidates: None until kube-scheduler has sent them. latest: of the last
    nomination, the request's shape and the row. probe: the pod that is left to kube-scheduler's
    search."""

    queue: list[tuple[_Order, str]] = field(default_factory=list)
    candidates: Rows | None = None
    latest: tuple[Shape, int] | None = None
    learned_s: float = 0.0
    probe: str = ""


class Backlog:
    """See the module. profiles: the schedulerNames served. policies: as for Verbs. clock: seconds,
    the same as State's."""

    def __init__(
        self,
        state: State,
        clock: Callable[[], float],
        when: When = When.BACKLOG,
        profiles: AbstractSet[str] = frozenset({names.SCHEDULER_NAME}),
        policies: Mapping[str, Policy] | None = None,
    ) -> None:
        self._state = state
        self._clock = clock
        self._least_nodes = _LEAST_NODES[when]
        self._leaves_head = when is When.BACKLOG
        self._write_s, self._turn_s, self._search_s = WRITE_S, TURN_S, TURN_S
        self._tried_s = float("-inf")
        self._profiles = profiles
        self._policies = policies or {}
        self._pods: dict[str, _Pod] = {}
        self._kinds: dict[bytes, _Kind] = {}
        self._untried: set[str] = set()
        """Nominable pods that kube-scheduler has not tried, nominated or not."""
        self._nominated: dict[str, None] = {}
        """By UID, the earliest first."""
        self._arrived = 0
        self.counts: Counter[Outcome] = Counter()
        self.leads_s: list[float] = []
        """From each nomination to kube-scheduler's call. The reader empties it."""

    def serves(self, profile: object) -> bool:
        """Whether pods of this schedulerName are nominated at all."""
        return bool(self._least_nodes) and profile in self._profiles

    # --- the watch

    def see(self, seen: Waiting) -> None:
        """The unbound pod was added or changed."""
        uid = seen.pending.uid
        pod = self._pods.get(uid)
        if pod is None:
            self._arrived += 1
            order = (-seen.pending.priority, seen.created, self._arrived)
            pod = self._pods[uid] = _Pod(seen, order, self._clock())
        was_nominable, pod.waiting = uid in self._untried, seen
        if seen.is_ours and uid not in self._nominated:
            # Written by an earlier process; the GPUs that it reserved are not known.
            self._note(uid, pod, seen.nominated)
            self._give_up(uid, pod)
        elif seen.is_nominable and not was_nominable and not pod.is_tried:
            self._enter(uid, pod)

    def bound(self, uid: str, node: str) -> None:
        """The pod was observed as bound."""
        pod = self._pods.get(uid)
        if pod is not None:
            self.counts[Outcome.CONFIRMED] += bool(node) and pod.node == node
            self.forget(uid)

    def forget(self, uid: str) -> None:
        """The pod is bound or gone."""
        self._nominated.pop(uid, None)
        self._untried.discard(uid)
        pod = self._pods.pop(uid, None)
        if pod is not None:
            kind = self._kinds.get(pod.waiting.constraints)
            if kind is not None and kind.probe == uid:
                kind.probe = ""

    # --- kube-scheduler's calls

    def tried(self, uid: str, nodes: Sequence[str]) -> str:
        """kube-scheduler calls `filter` for the pod, with these candidates. Returns the nominated
        node if it is among them on the first try, else ""."""
        pod = self._pods.get(uid)
        if pod is None:
            return ""
        now_s = self._clock()
        took_s, self._tried_s = now_s - self._tried_s, now_s
        if took_s < 1:  # else it had nothing to try
            if len(nodes) > 1:
                self._search_s += (took_s - self._search_s) * _NEWEST
            else:
                self._turn_s += (took_s - self._turn_s) * _NEWEST
        is_first = not pod.is_tried
        if pod.node and is_first:
            self.leads_s.append(now_s - pod.nominated_s)
        self._give_up(uid, pod)
        if pod.node in nodes and (is_first or len(nodes) == 1):
            self.counts[Outcome.LATE] += len(nodes) > 1
            return pod.node
        was_refused, pod.node = bool(pod.node), ""
        self.counts[Outcome.REFUSED] += was_refused
        kind = self._kinds.setdefault(pod.waiting.constraints, _Kind())
        if was_refused or kind.candidates is None or kind.probe == uid:
            kind.candidates = self._state.fleet.rows_of(nodes)
            kind.latest, kind.learned_s, kind.probe = None, self._clock(), ""
        return ""

    # --- nominations

    def plan(self, most: int, is_over: Callable[[], bool]) -> Sequence[Nomination]:
        """What to write now, at most so many, found before `is_over`. The GPUs are reserved."""
        found = self._overdue(most)
        if not self._least_nodes or len(self._state.fleet) < self._least_nodes:
            return found
        ahead = [self._pods[uid].order for uid in self._nominated if uid in self._untried]
        known = [kind for kind in self._kinds.values() if kind.candidates is not None]
        left = self._left(known, ahead) if self._leaves_head else 0
        while len(found) < most and len(ahead) < WINDOW and not is_over():
            known = [kind for kind in known if len(kind.queue) > left]
            if not known:
                break
            kind = min(known, key=lambda kind: kind.queue[left])
            order, uid = kind.queue.pop(left)
            pod = self._pods.get(uid)
            if pod is None or pod.order != order or not self._is_due(kind, uid, pod):
                continue
            placement = self._place(pod.waiting.pending, kind)
            if placement is not None:
                self._note(uid, pod, placement.node)
                self.counts[Outcome.NOMINATED] += 1
                ahead.append(order)
                found.append(Nomination(pod.waiting.pending, placement.node))
        return found

    def _left(self, kinds: Sequence[_Kind], ahead: Sequence[_Order]) -> int:
        """How many pods at the front kube-scheduler tries before a write that starts now is done. A
        nomination after that would only make the Binding fail, which names the pod's version.
        ahead: of the nominated pods."""
        for kind in kinds:
            self._remove_tried(kind)
        front = min((kind.queue[0] for kind in kinds if kind.queue), default=None)
        if front is None:
            return 0
        since_s = max(self._tried_s, self._pods[front[1]].arrived_s)
        if self._clock() - since_s > REST_S and len(self._untried) > FEW:
            return 0
        before = sum(order < front[0] for order in ahead)
        left_s = self._write_s - before * self._turn_s
        if left_s <= 0:
            return 0
        return min(MOST_HEAD, ceil(left_s / max(self._search_s, 1e-3)) + 1)

    def _remove_tried(self, kind: _Kind) -> None:
        """From the front of the kind's queue."""
        while kind.queue:
            order, uid = kind.queue[0]
            pod = self._pods.get(uid)
            if pod is not None and pod.order == order and not pod.is_tried:
                return
            kind.queue.pop(0)

    def written(self, uid: str, before: str, after: str) -> None:
        """The nomination was written; before, after: the pod's resourceVersions."""
        pod = self._pods.get(uid)
        if pod is not None:
            pod.written = before, after
            self._write_s += (self._clock() - pod.nominated_s - self._write_s) * _NEWEST

    def version(self, uid: str, version: str) -> str:
        """The pod's version, given the one that kube-scheduler sent: it may not have seen the
        nomination, which changes nothing that a Binding depends on."""
        pod = self._pods.get(uid)
        return pod.written[1] if pod is not None and pod.written[0] == version else version

    def failed(self, uid: str) -> None:
        """The nomination was not written; kube-scheduler searches for the pod."""
        self.counts[Outcome.FAILED] += 1
        self._nominated.pop(uid, None)
        pod = self._pods.get(uid)
        if pod is not None:
            self._drop(uid, pod)

    def _enter(self, uid: str, pod: _Pod) -> None:
        self._untried.add(uid)
        kinds = self._kinds
        insort(kinds.setdefault(pod.waiting.constraints, _Kind()).queue, (pod.order, uid))
        if len(kinds) > MAX_KINDS:
            unused = next((key for key, kind in kinds.items() if not kind.queue), None)
            if unused is not None:
                del kinds[unused]

    def _give_up(self, uid: str, pod: _Pod) -> None:
        """The pod is left to kube-scheduler."""
        pod.is_tried = True
        self._untried.discard(uid)

    def _is_due(self, kind: _Kind, uid: str, pod: _Pod) -> bool:
        if pod.is_tried or pod.node or pod.waiting.nominated or not pod.waiting.is_nominable:
            return False
        if not kind.probe and self._clock() - kind.learned_s > REFRESH_S:
            kind.probe = uid
            return False
        return self._state.node_of(uid) is None

    def _place(self, pending: Pending, kind: _Kind) -> Placement | None:
        """Reserves the best GPUs on the candidates."""
        state, request, rows = self._state, pending.request, kind.candidates
        assert request is not None and rows is not None
        fleet = state.fleet
        policy = request.policy or self._policies.get(pending.profile, Policy.BINPACK)
        found: Placement | Reason | None = None
        with state.budget.steps(MOST_STEPS, MOST_STEPS) as steps:
            # An equal pod made this node fuller, so it ranks first until it is full.
            if kind.latest and kind.latest[0] == request.shape and policy is Policy.BINPACK:
                found = place(fleet, request, kind.latest[1], policy, steps)
            if not isinstance(found, Placement):
                fitting = rows[feasible(fleet, request, rows, steps, state.known)]
                if not len(fitting):
                    return None
                scores = score(fleet, request, fitting, policy)
                row = int(fitting[best(fleet, scores, fitting, 1)[0]])
                kind.latest = request.shape, row
                found = place(fleet, request, row, policy, steps)
        if not isinstance(found, Placement):
            return None
        state.nominate(pending.uid, request, found, DEADLINE_S)
        return found

    def _note(self, uid: str, pod: _Pod, node: str) -> None:
        pod.node, pod.nominated_s = node, self._clock()
        self._nominated[uid] = None

    def _overdue(self, most: int) -> list[Nomination]:
        """Withdrawals of nominations whose deadline has passed. Such a pod is not nominated again:
        kube-scheduler, when it runs again, places it by itself."""
        found: list[Nomination] = []
        until_s = self._clock() - DEADLINE_S
        for uid in list(self._nominated):
            pod = self._pods[uid]
            if pod.nominated_s > until_s or len(found) == most:
                break
            del self._nominated[uid]
            if self._state.node_of(uid) is None:
                self.counts[Outcome.EXPIRED] += not pod.is_tried
                self._drop(uid, pod)
                if pod.waiting.is_ours:
                    found.append(Nomination(pod.waiting.pending, None))
        return found

    def _drop(self, uid: str, pod: _Pod) -> None:
        """Ends the pod's nomination and leaves it to kube-scheduler."""
        pod.node = ""
        self._give_up(uid, pod)
        if self._state.node_of(uid) is None:
            self._state.reservations.end(uid)
