"""Who may bind: one process of all, decided from what the Lease says and from our own clock.

Pure: told what was asked, read and written, and when; says what to do next. `leader` does it.
Seconds are of one clock of this host that never jumps and goes on while the host sleeps; clocks of
two hosts are never compared, only that they run equally fast, within a few percent.

A holder may write for `window_s` from the moment in which it *sent* its last renewal that
succeeded. Another takes the Lease when it has seen it unmoved for `lease_s`, and then waits for
`wait_s` before it writes. What the holder began to send within its window is over 2 * POST_S later,
at the client and at the server (docs/adr/0018). Hence the law of Terms.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from scheduler.lease import Campaign, Record, given_back

POST_S: Final = 4.0
"""A POST of a Binding is over by then, at the client and, as its query `timeout`, at the server."""


@dataclass(frozen=True, slots=True)
class Terms:
    """lease_s + wait_s > window_s + 2 * POST_S, by a margin for clocks that run unequally fast."""

    lease_s: float = 8.0
    """Unmoved for so long, the Lease may be taken."""
    window_s: float = 5.5
    """A renewal is good for so long."""
    wait_s: float = 6.5
    """From the taking of an expired Lease to the first write."""
    renew_s: float = 1.5
    look_s: float = 2.0
    """How often a standby that nobody asks looks at the Lease."""
    want_s: float = 0.4
    """How often one that is asked does."""
    asked_s: float = 15.0
    """Asked within so long, it wants the Lease: kube-scheduler's pause between two tries of a pod
    is 10 s at most."""
    campaign_s: float = 2.0
    """How often it says so."""
    fresh_s: float = 6.0
    """A campaign that has not moved for longer is over."""
    quiet_s: float = 3.0
    """A holder that was not asked for so long yields to a replica that is."""
    rival_quiet_s: float = 360.0
    """And to another installation after this: kube-scheduler tries each pending pod at least every
    5 minutes, so one that still lives asks sooner."""
    dead_wait_s: float = POST_S + 1.0
    """In place of wait_s where the holder is known to be dead: it has sent what it will send."""


MARGIN: Final = 0.05
"""By so much clocks of two hosts may run unequally fast; it is a thousand times what they do."""


class Role(Enum):
    STANDBY = "standby"
    TAKING = "taking"
    """Holds the Lease; waits, or lists afresh, before its first write."""
    HOLDING = "holding"
    YIELDING = "yielding"
    """Holds it, writes nothing new, finishes what is under way."""


class Do(Enum):
    """What to do next with the Lease, if anything."""

    LOOK = "look"
    TAKE = "take"
    RENEW = "renew"
    GIVE_BACK = "give back"
    CAMPAIGN = "campaign"


@dataclass(frozen=True, slots=True)
class Candidate:
    """identity: of this process and of no other ever. dead: identities whose processes are
    certainly dead."""

    identity: str
    installation: str
    dead: AbstractSet[str] = frozenset()


class Election:
    """See the module. After `step` you must do what it says, and tell `saw` or `wrote`."""

    def __init__(self, me: Candidate, terms: Terms | None = None) -> None:
        self.me = me
        self.terms = terms or Terms()
        self.role = Role.STANDBY
        self.record: Record | None = None
        """The Lease, as it was seen last; None: it is not there."""
        self.leaving = False
        """Set once: gives the Lease back, and takes it never again."""
        self._seen = False
        self._uid = ""
        self._replaced_s = float("-inf")
        """When the Lease was seen to be gone, or another of its name."""
        self._moved_s = 0.0
        self._valid_until_s = 0.0
        self._ready_s = 0.0
        self._asked_s = float("-inf")
        self._campaigned_s = float("-inf")
        self._count = 0
        self._campaigns: dict[str, tuple[Campaign, float]] = {}

    # --- what was

    def asked(self, now_s: float) -> None:
        """Our own kube-scheduler has asked something."""
        self._asked_s = now_s

    def saw(self, record: Record | None, now_s: float) -> None:
        """The Lease was read; now_s: when the answer had come. None: it is not there."""
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
            by: (said, at)
            for by, (said, at) in self._campaigns.items()
            if now_s - at <= self.terms.fresh_s
        }

    def wrote(self, do: Do, record: Record, sent_s: float, now_s: float) -> None:
        """TAKE, RENEW or GIVE_BACK succeeded; record: the answer. sent_s: before it was sent."""
        before, moved_s = self.record, self._moved_s
        self.saw(record, now_s)
        if do is Do.GIVE_BACK:
            self.role = Role.STANDBY
            self._campaigns.clear()
            # It was given to somebody: to be had again it takes a new question.
            self._asked_s = float("-inf")
            return
        self._valid_until_s = sent_s + self.terms.window_s
        if do is Do.TAKE:
            self.role = Role.TAKING
            self._ready_s = max(now_s, self._over_s(before, moved_s, sent_s))

    def said(self, now_s: float) -> None:
        """CAMPAIGN succeeded."""
        self._campaigned_s = now_s
        self._count += 1

    def listed(self) -> None:
        """All that is there was listed afresh, begun when `must_list` was already so."""
        if self.role is Role.TAKING:
            self.role = Role.HOLDING

    # --- what is

    @property
    def holds(self) -> bool:
        return self.role is not Role.STANDBY

    def may_write(self, now_s: float) -> bool:
        return self.role is Role.HOLDING and now_s < self._valid_until_s

    def is_silent(self, now_s: float) -> bool:
        """Whether we hold the Lease by name, and could not renew it in time."""
        return self.holds and now_s >= self._valid_until_s

    def must_list(self, now_s: float) -> bool:
        return self.role is Role.TAKING and now_s >= self._ready_s

    def wants(self, now_s: float) -> bool:
        return now_s - self._asked_s <= self.terms.asked_s and not self.leaving

    def is_rivals(self, now_s: float) -> bool:
        """Whether a process of another installation holds the Lease, and lives: there is no use
        in waiting for it."""
        record = self.record
        if record is None or not record.holder or self.holds:
            return False
        return record.installation != self.me.installation and not self._is_expired(now_s)

    def quiet_s(self, now_s: float) -> float:
        """For how long the holder has not moved."""
        return now_s - self._moved_s

    def campaign(self) -> Campaign:
        return Campaign(self.me.identity, self.me.installation, self._count)

    # --- what next

    def step(self, now_s: float, under_way: bool = False) -> Do:
        """What to do now. under_way: a write may still be on its way."""
        if not self._seen:
            return Do.LOOK
        if self.holds:
            if self.role is Role.YIELDING and not under_way:
                return Do.GIVE_BACK
            return Do.RENEW
        if not self.wants(now_s):
            return Do.LOOK
        if self._may_take(now_s):
            return Do.TAKE
        if now_s - self._campaigned_s >= self.terms.campaign_s:
            return Do.CAMPAIGN
        return Do.LOOK

    def settle(self, now_s: float) -> None:
        """To be called before `step`: whether to yield, by what is known now."""
        clean = self.role is Role.HOLDING or self.must_list(now_s)
        if not clean:
            return
        if self.leaving or self._has_heir(now_s):
            self.role = Role.YIELDING

    def pause_s(self, now_s: float) -> float:
        """From one step to the next, where nothing happens."""
        if self.holds:
            pause_s = self.terms.renew_s
            if self.role is Role.TAKING and self._ready_s > now_s:
                pause_s = min(pause_s, self._ready_s - now_s)
            return pause_s
        return self.terms.want_s if self.wants(now_s) else self.terms.look_s

    def record_for(self, do: Do, at: str) -> Record:
        """What to write. at: the time, for people."""
        seen = self.record
        if do is Do.TAKE:
            return Record(
                holder=self.me.identity,
                term=(seen.term if seen else 0) + 1,
                installation=self.me.installation,
                duration_s=self.terms.lease_s,
                renewed=at,
                acquired=at,
                waits=seen is None or not (self._is_given_back(seen) or self._is_dead(seen)),
                raw=seen.raw if seen else None,
            )
        assert seen is not None
        waits = seen.waits and self.role is Role.TAKING
        renewed = replace(seen, renewed=at, duration_s=self.terms.lease_s, waits=waits)
        return given_back(renewed) if do is Do.GIVE_BACK else renewed

    # --- inside

    def _is_ours(self, record: Record | None) -> bool:
        known = self.record
        if record is None or record.holder != self.me.identity:
            return False
        return known is None or record.term == known.term

    def _may_take(self, now_s: float) -> bool:
        record = self.record
        if record is None or record.holder in ("", self.me.identity):
            return True
        return self._is_dead(record) or self._is_expired(now_s)

    def _is_given_back(self, record: Record) -> bool:
        """Not so where it was deleted from under its holder, and made anew, as by the manifests."""
        return not record.holder and (record.term > 0 or self._replaced_s == float("-inf"))

    def _is_dead(self, record: Record) -> bool:
        """Whether the holder has sent all that it will, and whoever was before it, too."""
        return record.holder in self.me.dead and not record.waits

    def _is_expired(self, now_s: float) -> bool:
        record = self.record
        assert record is not None
        return self.quiet_s(now_s) >= max(self.terms.lease_s, record.duration_s)

    def _over_s(self, before: Record | None, moved_s: float, sent_s: float) -> float:
        """When all that the one before us may have sent is over."""
        terms = self.terms
        if before is None:
            # Somebody has deleted it, perhaps from under a holder that has just renewed it.
            return sent_s + terms.lease_s + terms.wait_s
        if self._is_given_back(before):
            return sent_s
        if not before.holder:
            return self._replaced_s + terms.lease_s + terms.wait_s
        if self._is_dead(before):
            return sent_s + terms.dead_wait_s
        return moved_s + max(terms.lease_s, before.duration_s) + terms.wait_s

    def _has_heir(self, now_s: float) -> bool:
        """Whether another is asked, and we are not."""
        unasked_s = now_s - self._asked_s
        for campaign, at_s in self._campaigns.values():
            if now_s - at_s > self.terms.fresh_s:
                continue
            rival = campaign.installation != self.me.installation
            if unasked_s >= (self.terms.rival_quiet_s if rival else self.terms.quiet_s):
                return True
        return False


def _beat(record: Record | None) -> tuple[str, int, str] | None:
    return None if record is None else (record.holder, record.term, record.renewed)
