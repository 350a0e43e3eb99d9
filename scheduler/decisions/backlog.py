"""Pods that wait for kube-scheduler's first try, and the nodes nominated for them.

Pure, over the state. With a node nominated, kube-scheduler filters only that node instead of all.
The backlog chooses nodes in kube-scheduler's order (priority, then time), reserves the GPUs, and
stays a bounded window ahead. kube-scheduler decides: it verifies the node, and searches by itself
where it refuses.

The nodes that kube-scheduler sends with `filter` have passed its own filters: they are the
candidates of all pods with equal constraints, until a later call. So the first pod of each kind is
never nominated, and no selector, taint or amount of processors is evaluated twice.

The watch adds and removes pods; `verbs` reports kube-scheduler's calls; `nominator` writes. A
nomination by preemption or by another component is left alone. One of ours is withdrawn at its
deadline, and when kube-scheduler reports the pod as unschedulable. See docs/adr/0050.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import inf
from typing import Final

from contract import names
from scheduler.core.fit import feasible
from scheduler.core.place import Placement, place
from scheduler.core.reasons import Reason
from scheduler.core.request import Policy, Request
from scheduler.core.reservations import Kind
from scheduler.core.score import best, score
from scheduler.core.search import MOST_STEPS
from scheduler.decisions.nomination import Nomination, Outcome, WaitingPod, When
from scheduler.decisions.pace import LEAD, MAX_BINDING, Pace
from scheduler.decisions.pod_kinds import PodKind, PodKinds
from scheduler.decisions.state import State
from scheduler.kubernetes.requests import Pending
from scheduler.kubernetes.waiting import Waiting

MIN_NODES: Final = 500
"""With fewer nodes, kube-scheduler's search costs less than the write."""
WINDOW: Final = 256
"""Nominated pods that kube-scheduler has not tried yet and tries before the next one to nominate:
those of lower priority do not count, but are at most MOST_AHEAD with the others."""
MOST_AHEAD: Final = 4 * WINDOW
REFRESH_S: Final = 10.0
"""Then one pod of the kind is not nominated: kube-scheduler's search renews the candidates."""
RETRY_S: Final = 5.0
"""After a withdrawal that failed."""
_NOW_S: Final = float("-inf")


_LEAST_NODES: Final = {When.OFF: 0, When.BACKLOG: MIN_NODES, When.ALWAYS: 1}
"""Minimum nodes of the fleet; 0: no pod is nominated."""


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
        self._pace = Pace()
        self._profiles = profiles
        self._policies = policies or {}
        self._pods: dict[str, WaitingPod] = {}
        self._kinds = PodKinds()
        """Their queues have the nominable pods that kube-scheduler has not tried and that have no
        nomination."""
        self._nominated: dict[str, float] = {}
        """By UID, when to withdraw the nomination, an earlier process's too."""
        self._ahead: dict[str, WaitingPod] = {}
        """By UID, the pods with a reservation that kube-scheduler has not tried."""
        self._arrived = 0
        self.counts: Counter[Outcome] = Counter()
        self.leads_s: list[float] = []
        """From each nomination to kube-scheduler's call. The reader empties it."""

    def serves(self, profile: object) -> bool:
        """Whether the watch reports pods of this schedulerName."""
        return profile in self._profiles

    # --- the watch

    def observe(self, seen: Waiting) -> None:
        """The unbound pod was added or changed."""
        uid = seen.pending.uid
        pod = self._pods.get(uid)
        if pod is None:
            if not self._least_nodes and not seen.is_ours:
                return
            self._arrived += 1
            order = (-seen.pending.priority, seen.created, self._arrived)
            pod = self._pods[uid] = WaitingPod(seen, order, self._clock())
        else:
            self._kinds.leave(pod.waiting.constraints, pod.order, uid)
            if pod.waiting.nominated and not seen.nominated:  # withdrawn, as before a preemption
                self._ahead.pop(uid, None)
            pod.waiting = seen
        if seen.is_ours and not pod.node and not pod.is_withdrawing:
            self._nominated.setdefault(uid, _NOW_S)  # by an earlier process
        if seen.was_refused and uid in self._nominated and not pod.is_preempting:
            self._end(uid, pod, Outcome.REFUSED)
            self._nominated[uid] = _NOW_S
        if self._is_due(pod):
            self._kinds.enter(seen.constraints, pod.order, uid)

    def _is_due(self, pod: WaitingPod) -> bool:
        seen = pod.waiting
        is_open = self._least_nodes and seen.is_nominable and not seen.nominated
        return bool(is_open and not pod.node and not pod.is_tried)

    def bound(self, uid: str, node: str) -> None:
        """The pod was observed as bound."""
        pod = self._pods.get(uid)
        if pod is not None:
            self.counts[Outcome.CONFIRMED] += pod.is_counted and bool(node) and pod.node == node
            self.remove(uid)

    def remove(self, uid: str) -> None:
        """The pod is bound or gone."""
        self._nominated.pop(uid, None)
        self._ahead.pop(uid, None)
        pod = self._pods.pop(uid, None)
        if pod is not None:
            key = pod.waiting.constraints
            kind = self._kinds.get(key)
            if kind is not None and kind.probe == uid:
                kind.probe = ""
            self._kinds.leave(key, pod.order, uid)

    # --- kube-scheduler's calls

    def tried(self, uid: str, nodes: Sequence[str]) -> str:
        """kube-scheduler calls `filter` for the pod, with these candidates. Returns the nominated
        node if it is among them on the first try, else ""."""
        pod = self._pods.get(uid)
        now_s, is_alone = self._clock(), len(nodes) == 1
        if pod is None:
            self._pace.note_try(now_s, inf, is_search=False)
            return ""
        is_first, nominated = not pod.is_tried, pod.node
        is_saved = is_alone and is_first and nominated in nodes and self._is_reserved(pod)
        self._pace.note_try(now_s, pod.arrived_s, not is_alone, is_saved)
        pod.arrived_s = inf
        if pod.is_counted and pod.node and is_first:
            self.leads_s.append(now_s - pod.nominated_s)
        self._give_up(uid, pod)
        if nominated in nodes and (is_first or is_alone):
            self.counts[Outcome.LATE] += pod.is_counted and not is_alone
            return nominated
        if nominated:
            self._end(uid, pod, Outcome.REFUSED)
        self._record_candidates(uid, pod, nodes, bool(nominated))
        return ""

    def _is_reserved(self, pod: WaitingPod) -> bool:
        """Whether the pod's node is certain to fit. The node may have changed meanwhile."""
        uid, request = pod.waiting.pending.uid, pod.waiting.pending.request
        held = self._state.reservations
        return request is not None and held.placement(uid, request, pod.node) is not None

    def _record_candidates(
        self, uid: str, pod: WaitingPod, nodes: Sequence[str], was_refused: bool
    ) -> None:
        """A single node is no list of candidates: it may be another component's nomination."""
        key = pod.waiting.constraints
        kind = self._kinds.get(key)
        if not self._least_nodes or (kind is None and not pod.waiting.is_nominable):
            return
        if kind is not None and kind.candidates is not None:
            if kind.probe != uid and not was_refused:
                return
            if len(nodes) == 1:
                self._kinds.drop_candidates(key)
        if len(nodes) > 1:
            self._kinds.record_candidates(key, self._state.fleet.rows_of(nodes), self._clock())

    def preempts(self, uid: str, nodes: Container[str]) -> None:
        """kube-scheduler may preempt others for the pod on one of these nodes. It writes no
        nomination where the pod's status names the node already."""
        pod = self._pods.get(uid)
        if pod is not None:
            pod.is_preempting = pod.waiting.nominated in nodes

    # --- nominations

    def plan(
        self, most: int, is_over: Callable[[], bool], paused: Container[str] = ()
    ) -> Sequence[Nomination]:
        """Nominations to write now, at most so many, found before `is_over`. Their GPUs are
        reserved. paused: namespaces without nominations."""
        found = self._due(most)
        known = self._open()
        ahead = sorted(pod.order for pod in self._ahead.values())
        while len(found) < most and len(self._ahead) < MOST_AHEAD and not is_over():
            known = [
                (kind, at)
                for kind, at in known
                if kind.candidates is not None and len(kind.queue) > at
            ]
            if not known:
                break
            kind, at = min(known, key=lambda one: one[0].queue[one[1]])
            order, uid = kind.queue[at]
            if bisect(ahead, order) + len(found) >= WINDOW:
                break
            pod = self._pods[uid]
            request = pod.waiting.pending.request
            assert request is not None
            if len(request.containers) > 1 and self._state.budget.left < MOST_STEPS:
                break
            if not kind.probe and self._clock() - kind.recorded_s > REFRESH_S:
                kind.probe = uid
                self._give_up(uid, pod)
            elif pod.waiting.pending.namespace in paused or self._state.node_of(uid) is not None:
                self._give_up(uid, pod)
            elif (node := self._place(pod.waiting.pending, request, kind)) is not None:
                del kind.queue[at]
                self._note(uid, pod, node)
                pod.is_counted = True
                self.counts[Outcome.NOMINATED] += 1
                found.append(Nomination(pod.waiting.pending, node))
            else:  # until kube-scheduler sends others
                self._kinds.drop_candidates(pod.waiting.constraints)
        return found

    def _open(self) -> list[tuple[PodKind, int]]:
        """The kinds with pods to nominate, and the index of the first one in the kind's queue: the
        pods at the front of all are left to kube-scheduler. In a small fleet none."""
        if not self._least_nodes or len(self._state.fleet) < self._least_nodes:
            return []
        kinds = [kind for kind in self._kinds.with_candidates if kind.queue]
        if not kinds or not self._leaves_head:
            return [(kind, 0) for kind in kinds]
        ahead = len(self._ahead)
        if self._pace.leaves_all(ahead, sum(len(kind.queue) for kind in kinds)):
            return []
        front, uid = min(kind.queue[0] for kind in kinds)
        if not self._pace.leaves_first(self._clock(), self._pods[uid].arrived_s, ahead):
            return [(kind, 0) for kind in kinds]
        found = [(kind, int(kind.queue[0][0] == front)) for kind in kinds]
        return [(kind, at) for kind, at in found if len(kind.queue) > at]

    def hold_s(self, binding: int) -> float:
        """For how long to hold back the answer to kube-scheduler's call at most: until `may_go_on`.
        0.0: not at all."""
        return self._pace.hold_s if self._pace.hold_s and not self.may_go_on(binding) else 0.0

    def may_go_on(self, binding: int) -> bool:
        """Whether kube-scheduler has received enough nominations, or no more are to come; those of
        lower priority than a missing one do not count. It receives them when this process does, by
        a watch. binding: pods whose Bindings are in progress."""
        if binding > MAX_BINDING:
            return False
        ahead = self._ahead.values()
        missing = [pod.order for pod in ahead if not pod.waiting.nominated]
        missing += [kind.queue[at][0] for kind, at in self._open()]
        if not missing:
            return True
        highest, *_ = min(missing)
        received = [pod for pod in ahead if pod.waiting.nominated and pod.order[0] <= highest]
        return len(received) >= LEAD

    def answered(self) -> None:
        """kube-scheduler gets the answer that was held back."""
        self._pace.answered_s = self._clock()

    def written(self, wanted: Nomination, version: str) -> None:
        """It was written; the pod has this resourceVersion now."""
        pod = self._pods.get(wanted.pending.uid)
        if pod is not None:
            pod.written = wanted.pending.version, version
            pod.is_withdrawing = False

    def version(self, uid: str, version: str) -> str:
        """The pod's version, given the one that kube-scheduler sent: it may not have seen the
        nomination, which changes nothing that a Binding depends on."""
        pod = self._pods.get(uid)
        return pod.written[1] if pod is not None and pod.written[0] == version else version

    def failed(self, wanted: Nomination) -> None:
        """It was not written. Without a nomination kube-scheduler searches for the pod; a
        withdrawal is tried again."""
        uid = wanted.pending.uid
        pod = self._pods.get(uid)
        if wanted.node is not None:
            self.counts[Outcome.FAILED] += 1
            if pod is not None:
                self._nominated.pop(uid, None)
                self._end(uid, pod)
        elif pod is not None:
            pod.is_withdrawing = False
            self._nominated[uid] = self._clock() + RETRY_S

    def _give_up(self, uid: str, pod: WaitingPod) -> None:
        """The pod is left to kube-scheduler."""
        pod.is_tried = True
        self._ahead.pop(uid, None)
        self._kinds.leave(pod.waiting.constraints, pod.order, uid)

    def _place(self, pending: Pending, request: Request, kind: PodKind) -> str | None:
        """Reserves the best GPUs on the candidates, and returns their node."""
        state, rows = self._state, kind.candidates
        assert rows is not None
        fleet = state.fleet
        policy = self._policy(pending, request)
        found: Placement | Reason | None = None
        with state.budget.steps(MOST_STEPS, 0) as steps:
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
        state.reserve(pending.uid, request, found, Kind.NOMINATED)
        return found.node

    def _policy(self, pending: Pending, request: Request) -> Policy:
        return request.policy or self._policies.get(pending.profile, Policy.BINPACK)

    def _note(self, uid: str, pod: WaitingPod, node: str) -> None:
        pod.node, pod.nominated_s = node, self._clock()
        self._ahead[uid] = pod
        self._nominated[uid] = pod.nominated_s + Kind.NOMINATED.value

    def _due(self, most: int) -> list[Nomination]:
        """Withdrawals that are due. Such a pod is not nominated again: kube-scheduler, when it runs
        again, places it by itself. A nomination of an earlier process is adopted if it can be."""
        found: list[Nomination] = []
        now_s = self._clock()
        for uid, due_s in list(self._nominated.items()):
            if due_s > now_s:
                continue
            if len(found) == most:
                break
            pod = self._pods[uid]
            if self._state.node_of(uid) is not None:  # it is being bound
                self._nominated[uid] = now_s + Kind.NOMINATED.value
            elif not self._adopt(uid, pod):
                self._end(uid, pod, Outcome.EXPIRED)
                del self._nominated[uid]
                if pod.waiting.is_ours and not pod.is_preempting:
                    pod.is_withdrawing = True
                    found.append(Nomination(pod.waiting.pending, None))
        return found

    def _adopt(self, uid: str, pod: WaitingPod) -> bool:
        """Reserves the GPUs on the node that an earlier process nominated."""
        seen, fleet = pod.waiting, self._state.fleet
        request = seen.pending.request
        if pod.node or pod.is_tried or not self._least_nodes or not seen.is_ours or not request:
            return False
        rows = fleet.rows_of([seen.nominated])
        with self._state.budget.steps(MOST_STEPS, 0) as steps:
            if not feasible(fleet, request, rows, steps, self._state.known)[0]:
                return False
            policy = self._policy(seen.pending, request)
            found = place(fleet, request, int(rows[0]), policy, steps)
        if not isinstance(found, Placement):
            return False
        self._state.reserve(uid, request, found, Kind.NOMINATED)
        self._note(uid, pod, seen.nominated)
        return True

    def _end(self, uid: str, pod: WaitingPod, outcome: Outcome | None = None) -> None:
        """Ends the pod's reservation and leaves it to kube-scheduler. outcome: counted if this
        process nominated the node."""
        if outcome is not None and pod.node and pod.is_counted:
            self.counts[outcome] += outcome is not Outcome.EXPIRED or not pod.is_tried
        pod.node = ""
        self._give_up(uid, pod)
        if self._state.node_of(uid) is None:
            self._state.reservations.end(uid)
