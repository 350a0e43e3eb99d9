"""Decides from the agents' Leases which agents run, and which are ready. An agent runs if its Lease
has changed recently. Times are seconds of the caller's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler.core.reasons import Reason
from scheduler.kubernetes.facts import LeaseFacts, Problem


@dataclass(slots=True)
class _AgentLease:
    """A Lease as last received. renewed_s: when it last changed, by the local clock."""

    facts: LeaseFacts
    renewed_s: float
    expired: bool = False


class Agents:
    """The agents' Leases by node. A Lease that has not changed for expired_after_s has expired."""

    def __init__(self, expired_after_s: float) -> None:
        self._expired_after_s = expired_after_s
        self._leases: dict[str, _AgentLease] = {}
        self._watch_lost = False

    def observe(self, facts: LeaseFacts, now_s: float, age_s: float) -> None:
        """Record the Lease. age_s: its age by the agent's clock, used only for the first Lease of a
        node. If that clock is wrong, the Lease may count as expired until its next renewal."""
        lease = self._leases.get(facts.name)
        if lease is None:
            lease = self._leases[facts.name] = _AgentLease(facts, now_s - max(0.0, age_s))
            lease.expired = now_s - lease.renewed_s > self._expired_after_s
        elif lease.facts.beat != facts.beat:
            lease = self._leases[facts.name] = _AgentLease(facts, now_s)
        lease.facts = facts

    def remove(self, node: str) -> bool:
        """Forget the node's Lease, and return whether the node had one."""
        return self._leases.pop(node, None) is not None

    @property
    def has_ready(self) -> bool:
        return any(not (each.expired or each.facts.not_ready) for each in self._leases.values())

    def tick(self, now_s: float, watch_lost: bool) -> Sequence[str]:
        """Return the nodes whose `blocked_by` has changed since the last call. watch_lost: whether
        the watch of Leases fails, in which case a missing renewal proves nothing."""
        changed = []
        for node, lease in self._leases.items():
            is_late = now_s - lease.renewed_s > self._expired_after_s
            has_flipped = lease.expired and watch_lost != self._watch_lost
            if has_flipped or (is_late and not lease.expired):
                changed.append(node)
            lease.expired |= is_late
        self._watch_lost = watch_lost
        return changed

    def blocked_by(self, node: str) -> Reason:
        """Return why the node's agent serves no containers, or FITS if it does."""
        lease = self._leases.get(node)
        if lease is None:
            return Reason.AGENT_MISSING
        if lease.expired:
            return Reason.LEASES_LOST if self._watch_lost else Reason.AGENT_LEASE_EXPIRED
        return Reason.AGENT_NOT_READY if lease.facts.not_ready else Reason.FITS

    def problems(self) -> Iterable[Problem]:
        """Yield what each agent that is not ready reports."""
        for name, lease in self._leases.items():
            if lease.facts.not_ready:
                yield Problem(name, "", f"node agent: {lease.facts.not_ready}")
