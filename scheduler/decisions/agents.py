"""The agents' Leases: which agents run, and which are ready. Only a changed Lease shows that its
agent runs. Pure; times are seconds of the caller's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler.core.reasons import Reason
from scheduler.kubernetes.facts import LeaseFacts, Problem


@dataclass(slots=True)
class _AgentLease:
    """renewed_s: when it last changed, by the local clock."""

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
        """The first Lease received has no local time, so its age is age_s by the agent's clock. An
        agent with a wrong clock is excluded until its next renewal."""
        lease = self._leases.get(facts.name)
        if lease is None:
            lease = self._leases[facts.name] = _AgentLease(facts, now_s - max(0.0, age_s))
            lease.expired = now_s - lease.renewed_s > self._expired_after_s
        elif lease.facts.beat != facts.beat:
            lease = self._leases[facts.name] = _AgentLease(facts, now_s)
        lease.facts = facts

    def remove(self, node: str) -> bool:
        """Whether the node had a Lease."""
        return self._leases.pop(node, None) is not None

    @property
    def has_ready(self) -> bool:
        return any(not (each.expired or each.facts.not_ready) for each in self._leases.values())

    def tick(self, now_s: float, watch_lost: bool) -> Sequence[str]:
        """The nodes whose reason has changed since the last call. watch_lost: the watch of Leases
        is broken, so that missing renewals mean nothing."""
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
        """Why the node's agent serves no container; FITS: it does."""
        lease = self._leases.get(node)
        if lease is None:
            return Reason.AGENT_MISSING
        if lease.expired:
            return Reason.LEASES_LOST if self._watch_lost else Reason.AGENT_LEASE_EXPIRED
        return Reason.AGENT_NOT_READY if lease.facts.not_ready else Reason.FITS

    def problems(self) -> Iterable[Problem]:
        """Reports of agents that are not ready."""
        for name, lease in self._leases.items():
            if lease.facts.not_ready:
                yield Problem(name, "", f"node agent: {lease.facts.not_ready}")
