"""Leader election: decides which process may bind, from the Lease and a local clock.

Pure. The caller reports reads, writes and their times; the result is the next action, which
`leader` performs. Seconds are of one monotonic clock of this host that includes suspend. Clocks of
two hosts are never compared; they must run equally fast within a few percent.

A holder may write for `window_s` after the moment at which it *sent* its last successful renewal.
Another process takes the Lease after observing it unchanged for `lease_s`, and waits another
`wait_s` before it writes. A POST that the holder started within its window ends within 2 * POST_S,
at the client and at the server (docs/adr/0018). From this follows the invariant of Timing.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from scheduler.leadership.lease import Campaign, Record, released

POST_S: Final = 4.0
"""Timeout of a Binding's POST at the client and, as its query `timeout`, at the server."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Invariant: lease_s + wait_s > window_s + 2 * POST_S, with a margin for the clocks' rate
    difference."""

    lease_s: float = 8.0
    """The Lease may be taken after it was unchanged for this long."""
    window_s: float = 5.5
    """How long a renewal permits writes."""
    wait_s: float = 6.5
    """Wait between acquiring an expired Lease and the first write."""
    renew_s: float = 1.5
    standby_poll_s: float = 2.0
    """Poll interval of a standby that receives no calls."""
    candidate_poll_s: float = 0.4
    """Poll interval of a standby that receives calls."""
    candidacy_s: float = 15.0
    """A process is a candidate for this long after a call. kube-scheduler retries a pod
    after at most 10 s."""
    campaign_s: float = 2.0
    """Interval of its campaign updates."""
    fresh_s: float = 6.0
    """A campaign that is unchanged for longer is over."""
    yield_s: float = 3.0
    """A holder without calls for this long yields to a replica that receives calls."""
    yield_to_other_installation_s: float = 360.0
    """The same for another installation. kube-scheduler retries each pending pod at least every 5
    minutes, so a running one sends a call sooner."""
    exited_wait_s: float = POST_S + 1.0
    """Replaces wait_s if the holder's process is known to have exited: it sends nothing more."""


class Role(Enum):
    STANDBY = "standby"
    ACQUIRING = "acquiring"
    """Holds the Lease; waits or relists before its first write."""
    HOLDING = "holding"
    RELEASING = "releasing"
    """Holds the Lease, starts no new write, finishes pending ones."""


class Do(Enum):
    """The next operation on the Lease."""

    READ = "read"
    ACQUIRE = "acquire"
    RENEW = "renew"
    RELEASE = "release"
    CAMPAIGN = "campaign"


@dataclass(frozen=True, slots=True)
class Candidate:
    """identity: unique to this process for all time. exited: identities of processes that are known
    to have exited."""

    identity: str
    installation: str
    exited: AbstractSet[str] = frozenset()


class Election:
    """See the module. After `step`, perform the action and report `observed` or `wrote`."""

    def __init__(self, me: Candidate, timing: Timing | None = None) -> None:
        self.me = me
        self.timing = timing or Timing()
        self.role = Role.STANDBY
        self.record: Record | None = None
        """The Lease as last read; None: it does not exist."""
        self.leaving = False
        """Set once: releases the Lease and never acquires it again."""
        self._seen = False
        self._uid = ""
        self._replaced_s = float("-inf")
        """When the Lease was observed to be deleted or recreated."""
        self._moved_s = 0.0
        self._valid_until_s = 0.0
        self._ready_s = 0.0
        self._called_s = float("-inf")
        self._campaigned_s = float("-inf")
        self._count = 0
        self._campaigns: dict[str, tuple[Campaign, float]] = {}

    # --- observations

    def record_call(self, now_s: float) -> None:
        """This process's kube-scheduler has sent a call."""
        self._called_s = now_s

    def observed(self, record: Record | None, now_s: float) -> None:
        """The Lease was read. now_s: when the answer arrived. record None: it does not exist."""
        if not self._seen or _beat(record) != _beat(self.record):
            self._moved_s = now_s
        uid = record.uid if record else ""
        if self._seen and uid != self._uid:
            self._replaced_s = now_s
        self._seen, self._uid = True, uid
        if self.holds and not self._is_ours(record):
            self.role = Role.STANDBY
        self.record = record
        campaign = record.campaign if record else None
        if campaign is not None and campaign.identity != self.me.identity:
            known = self._campaigns.get(campaign.identity)
            if known is None or known[0] != campaign:
                self._campaigns[campaign.identity] = (campaign, now_s)
        self._campaigns = {
            by: (campaign, at)
            for by, (campaign, at) in self._campaigns.items()
            if now_s - at <= self.timing.fresh_s
        }

    def wrote(self, do: Do, record: Record, sent_s: float, now_s: float) -> None:
        """ACQUIRE, RENEW or RELEASE succeeded. record: the answer. sent_s: before the request was
        sent."""
        before, moved_s = self.record, self._moved_s
        self.observed(record, now_s)
        if do is Do.RELEASE:
            self.role = Role.STANDBY
            self._campaigns.clear()
            # Acquiring it again requires a new call.
            self._called_s = float("-inf")
            return
        self._valid_until_s = sent_s + self.timing.window_s
        if do is Do.ACQUIRE:
            self.role = Role.ACQUIRING
            self._ready_s = max(now_s, self._over_s(before, moved_s, sent_s))

    def campaigned(self, now_s: float) -> None:
        """CAMPAIGN succeeded."""
        self._campaigned_s = now_s
        self._count += 1

    def listed(self) -> None:
        """All objects were relisted, in a list started when `must_list` was already true."""
        if self.role is Role.ACQUIRING:
            self.role = Role.HOLDING

    # --- queries

    @property
    def holds(self) -> bool:
        return self.role is not Role.STANDBY

    def may_write(self, now_s: float) -> bool:
        return self.role is Role.HOLDING and now_s < self._valid_until_s

    def is_renewal_late(self, now_s: float) -> bool:
        """Whether this process is the recorded holder but could not renew in time."""
        return self.holds and now_s >= self._valid_until_s

    def must_list(self, now_s: float) -> bool:
        return self.role is Role.ACQUIRING and now_s >= self._ready_s

    def is_candidate(self, now_s: float) -> bool:
        return now_s - self._called_s <= self.timing.candidacy_s and not self.leaving

    def is_held_by_other_installation(self, now_s: float) -> bool:
        """Whether a process of another installation holds an unexpired Lease, so that waiting is
        useless."""
        record = self.record
        if record is None or not record.holder or self.holds:
            return False
        return record.installation != self.me.installation and not self._is_expired(now_s)

    def unchanged_s(self, now_s: float) -> float:
        """Seconds since the holder's record last changed."""
        return now_s - self._moved_s

    def campaign(self) -> Campaign:
        return Campaign(self.me.identity, self.me.installation, self._count)

    # --- next action

    def step(self, now_s: float, under_way: bool = False) -> Do:
        """The next action. under_way: a write may still be pending."""
        if not self._seen:
            return Do.READ
        if self.holds:
            if self.role is Role.RELEASING and not under_way:
                return Do.RELEASE
            return Do.RENEW
        if not self.is_candidate(now_s):
            return Do.READ
        if self._may_take(now_s):
            return Do.ACQUIRE
        if now_s - self._campaigned_s >= self.timing.campaign_s:
            return Do.CAMPAIGN
        return Do.READ

    def settle(self, now_s: float) -> None:
        """Decides whether to yield. Call before `step`."""
        clean = self.role is Role.HOLDING or self.must_list(now_s)
        if not clean:
            return
        if self.leaving or self._has_successor(now_s):
            self.role = Role.RELEASING

    def pause_s(self, now_s: float) -> float:
        """Seconds until the next step if no event occurs."""
        if self.holds:
            pause_s = self.timing.renew_s
            if self.role is Role.ACQUIRING and self._ready_s > now_s:
                pause_s = min(pause_s, self._ready_s - now_s)
            return pause_s
        timing = self.timing
        return timing.candidate_poll_s if self.is_candidate(now_s) else timing.standby_poll_s

    def record_for(self, do: Do, at: str) -> Record:
        """The record to write. at: the time, for people."""
        seen = self.record
        if do is Do.ACQUIRE:
            return Record(
                holder=self.me.identity,
                term=(seen.term if seen else 0) + 1,
                installation=self.me.installation,
                duration_s=self.timing.lease_s,
                renewed=at,
                acquired=at,
                fencing_pending=(
                    seen is None or not (self._is_released(seen) or self._has_exited(seen))
                ),
                raw=seen.raw if seen else None,
            )
        assert seen is not None
        renewed = replace(
            seen,
            renewed=at,
            duration_s=self.timing.lease_s,
            fencing_pending=seen.fencing_pending and self.role is Role.ACQUIRING,
        )
        return released(renewed) if do is Do.RELEASE else renewed

    # --- internals

    def _is_ours(self, record: Record | None) -> bool:
        known = self.record
        if record is None or record.holder != self.me.identity:
            return False
        return known is None or record.term == known.term

    def _may_take(self, now_s: float) -> bool:
        record = self.record
        if record is None or record.holder in ("", self.me.identity):
            return True
        return self._has_exited(record) or self._is_expired(now_s)

    def _is_released(self, record: Record) -> bool:
        """False if the Lease was deleted while held and then recreated, as by applying the
        manifests."""
        return not record.holder and (record.term > 0 or self._replaced_s == float("-inf"))

    def _has_exited(self, record: Record) -> bool:
        """Whether the holder, and every holder before it, has sent its last write."""
        return record.holder in self.me.exited and not record.fencing_pending

    def _is_expired(self, now_s: float) -> bool:
        record = self.record
        assert record is not None
        return self.unchanged_s(now_s) >= max(self.timing.lease_s, record.duration_s)

    def _over_s(self, before: Record | None, moved_s: float, sent_s: float) -> float:
        """The time by which every write of earlier holders has ended."""
        timing = self.timing
        if before is None:
            # The Lease was deleted, perhaps just after its holder renewed it.
            return sent_s + timing.lease_s + timing.wait_s
        if self._is_released(before):
            return sent_s
        if not before.holder:
            return self._replaced_s + timing.lease_s + timing.wait_s
        if self._has_exited(before):
            return sent_s + timing.exited_wait_s
        return moved_s + max(timing.lease_s, before.duration_s) + timing.wait_s

    def _has_successor(self, now_s: float) -> bool:
        """Whether another process receives calls and this one does not."""
        uncalled_s = now_s - self._called_s
        for campaign, at_s in self._campaigns.values():
            if now_s - at_s > self.timing.fresh_s:
                continue
            is_other, timing = campaign.installation != self.me.installation, self.timing
            if uncalled_s >= (timing.yield_to_other_installation_s if is_other else timing.yield_s):
                return True
        return False


def _beat(record: Record | None) -> tuple[str, int, str] | None:
    return None if record is None else (record.holder, record.term, record.renewed)
