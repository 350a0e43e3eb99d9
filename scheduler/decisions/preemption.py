"""Chooses the node and the victims of a preemption. See docs/adr/0028.

kube-scheduler offers victims for each node, chosen by the node's totals. Where these free no GPU
for the pod, other pods of lower priority are chosen here. Ranks are kube-scheduler's, so a smaller
rank is better: first the fewest violated budgets, then the lowest priorities, then the fewest
victims. Leaving pods count as gone, and are no victims.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from scheduler.core.fleet import GpuAmount
from scheduler.core.place import Placement, place
from scheduler.core.request import WHOLE_PERCENT, Request, Scope
from scheduler.decisions.state import State
from scheduler.kubernetes.arguments import Victims
from scheduler.kubernetes.facts import PodFacts

MAX_NODES: Final = 5_000
"""The most nodes to examine for a pod with one container. Several containers take longer for each
node, and kube-scheduler waits for the answer."""
_PER_VICTIM: Final = 2**31
"""Added to each victim's priority, as kube-scheduler does, so that fewer victims rank better."""
_GROUPS: Final = {Scope.PCIE: "root", Scope.NUMA_NODE: "numa"}

Rank = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Evicted:
    """The best node and its victims. offered: whether these are kube-scheduler's."""

    node: str
    uids: Sequence[str]
    rank: Rank
    offered: bool = False


@dataclass(slots=True)
class _Room:
    """What is free of a GPU. core_percent: less than 0 if overcommitted."""

    memory_bytes: int
    core_percent: int
    uncapped_shares: int

    def add(self, amount: GpuAmount, sign: int = 1) -> None:
        self.memory_bytes += sign * amount.memory_bytes
        self.core_percent += sign * (amount.core_percent or 0)
        self.uncapped_shares -= sign * (amount.core_percent is None)

    def fits(self, memory_bytes: int, core_percent: int | None) -> bool:
        free_core = self.core_percent - (core_percent is not None and self.uncapped_shares > 0)
        return memory_bytes <= self.memory_bytes and (core_percent or 1) <= free_core


class Preemption:
    """A search for one pod, which has this UID, request and priority."""

    def __init__(self, state: State, uid: str, request: Request, priority: int) -> None:
        self._state = state
        self._uid = uid
        self._request = request
        self._priority = priority
        self._peak_of = cache(request.peak_of)
        self._left = state.nodes_left()
        self._offered: dict[str, Victims] = {}
        self._ranks: dict[str, Rank] = {}

    def offer(self, offered: Mapping[str, Victims]) -> None:
        """Add kube-scheduler's victims of some nodes. They rank no worse than victims that free a
        GPU, because they free only the totals."""
        fleet = self._state.fleet
        for node, each in offered.items():
            if not fleet.blocked_by[fleet.row_of(node)]:
                is_left = node in self._left
                self._ranks[node] = () if is_left else self._rank(each.uids, each.violations)
                self._offered[node] = each

    def best(self) -> Generator[bytes, None, Evicted | None]:
        """Return the best node and its victims. Yield b"" after each node that was examined."""
        best: Evicted | None = None
        most = MAX_NODES // len(self._request.containers) ** 2
        for node, rank in sorted(self._ranks.items(), key=lambda each: each[1])[:most]:
            if best is not None and best.rank <= rank:
                break
            found = self._on_node(node, self._offered[node])
            if found is not None and (best is None or found.rank < best.rank):
                best = found
            yield b""
        return best

    def _on_node(self, node: str, offered: Victims) -> Evicted | None:
        """Return the victims whose deletion makes room for the pod on this node, or None. Offered
        victims without a GPU always stay, because the node may lack, for example, CPUs."""
        state, row = self._state, self._state.fleet.row_of(node)
        leaving = state.leaving(node)
        others = [uid for uid in offered.uids if not state.allocations.get(uid)]
        violations = offered.violations if others else 0
        rows = state.fleet.rows_of((node,))
        with (
            state.reservations.lifted(rows, self._priority, (self._uid,)),
            state.fleet.vacated(row, state.amounts(leaving)),
        ):
            chosen = self._choose(node, row, {*leaving})
            if chosen is None and len(self._request.containers) == 1:
                return None
            lower = [uid for uid in leaving if self._victim(uid)]
            if lower and self._fits(row, ()):
                uids = [*dict.fromkeys((*others, *lower))]
                return Evicted(node, uids, self._rank(others, violations, leaving))
            if self._fits(row, {*offered.uids} - {*leaving}):
                rank = self._rank(offered.uids, offered.violations, leaving)
                return Evicted(node, offered.uids, rank, offered=True)
            if not chosen or not self._fits(row, chosen):
                return None
        uids = [*dict.fromkeys((*others, *chosen))]
        violations = max(violations, self._violations(chosen))
        return Evicted(node, uids, self._rank(uids, violations, leaving))

    def _victim(self, uid: str) -> PodFacts | None:
        """Return the facts of a pod that may be evicted, else None."""
        facts = self._state.facts_of(uid)
        is_lower = facts is not None and facts.priority < self._priority
        return facts if is_lower and self._state.is_bound(uid) else None

    def _fits(self, row: int, without: Collection[str]) -> bool:
        with self._state.fleet.vacated(row, self._state.amounts(without)):
            return isinstance(place(self._state.fleet, self._request, row), Placement)

    def _rank(self, uids: Collection[str], violations: int, leaving: Collection[str] = ()) -> Rank:
        found = (self._state.facts_of(uid) for uid in uids if uid not in leaving)
        priorities = [facts.priority if facts else 0 for facts in found]
        total = sum(_PER_VICTIM + priority for priority in priorities)
        return violations, max(priorities, default=-_PER_VICTIM), total

    def _violations(self, uids: Collection[str]) -> int:
        facts = (self._state.facts_of(uid) for uid in uids)
        return len(self._state.budgets.violating(each for each in facts if each))

    def _choose(self, node: str, row: int, leaving: Collection[str]) -> Sequence[str] | None:
        """Return the victims on the best GPUs of the node, or None if too few GPUs can have room
        for all containers of the pod at once, which a pod of several containers may not need."""
        fleet, request = self._state.fleet, self._request
        held: dict[int, list[tuple[PodFacts, GpuAmount]]] = {}
        for uid in self._state.pods_on(node):
            if uid not in leaving and (facts := self._victim(uid)):
                for amount in self._state.allocations.get(uid, ()):
                    held.setdefault(amount.slot, []).append((facts, amount))
        selected = fleet.usable[row] & fleet.selected(
            request.selector, lambda name: getattr(fleet, name)[row]
        )
        group = _GROUPS.get(request.scope)
        parts: dict[int, list[tuple[Rank, Sequence[str]]]] = {}
        for slot, gpu in enumerate(fleet.gpus[row]):
            peak, room = self._peak_of(gpu.total_bytes), self._room(row, slot)
            victims = self._reprieve(room, held.get(slot, []), *peak) if selected[slot] else None
            if victims is not None:
                part = int(getattr(fleet, group)[row, slot]) if group else 0
                cost = self._rank(victims, self._violations(victims)), victims
                parts.setdefault(part, []).append(cost)
        wanted = max(container.gpus for container in request.containers)
        sets = [
            list(dict.fromkeys(uid for _, victims in sorted(part)[:wanted] for uid in victims))
            for part in parts.values()
            if len(part) >= wanted
        ]
        return min(sets, key=lambda uids: self._rank(uids, self._violations(uids)), default=None)

    def _room(self, row: int, slot: int) -> _Room:
        fleet, at = self._state.fleet, (row, slot)
        core = int(fleet.used_core[at]) + int(fleet.reserved_core[at])
        return _Room(
            int(fleet.total_bytes[at] - fleet.used_bytes[at] - fleet.reserved_bytes[at]),
            WHOLE_PERCENT - core,
            int(fleet.uncapped_shares[at]) + int(fleet.reserved_uncapped[at]),
        )

    def _reprieve(
        self,
        room: _Room,
        held: Sequence[tuple[PodFacts, GpuAmount]],
        memory_bytes: int,
        core_percent: int | None,
    ) -> Sequence[str] | None:
        """Return the victims that free this much of a GPU, or None. As kube-scheduler does, remove
        all pods, then put back those that the budgets protect and those of high priority first. Of
        equal ones the smallest is first, so that few victims remain."""
        for _, amount in held:
            room.add(amount)
        if not room.fits(memory_bytes, core_percent):
            return None
        by_priority = sorted(held, key=lambda each: -each[0].priority)
        protected = self._state.budgets.violating(facts for facts, _ in by_priority)
        victims = []
        for facts, amount in sorted(
            by_priority,
            key=lambda each: (
                each[0].uid not in protected,
                -each[0].priority,
                each[1].memory_bytes,
            ),
        ):
            room.add(amount, -1)
            if not room.fits(memory_bytes, core_percent):
                room.add(amount)
                victims.append(facts.uid)
        return victims
