"""Decides whose turn it is on one GPU, by deficit round robin with debt. Time is an argument.

One container at a time may submit work, in a window. The window's length is the container's share
of a cycle of 100 ms. A turn ends when the submitted work is almost done, at most one cycle after
the window. GPU time beyond the container's credit is debt, which makes its next windows shorter or
fewer. A container without work gives up its turn, and the rest of the turn is divided among the
others by their shares. If only one container has work, it gets the whole GPU, or its share if
forced.

Invariants: while any container has work, at most one has an open window. While none has, all
windows are open, so that the first launch need not wait. Over time a container uses its share of
the cycles in which it has work, to within one launch and one window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gpuslice.contract.grant_file import Policy, is_cap
from gpuslice.contract.lease_file import CYCLE_NS, WHOLE_PPM, Lease
from gpuslice.contract.region_file import Compute

_MS: Final = 1_000_000
IDLE_NS: Final = 10 * _MS
"""A container gives up its turn after this time without a launch and without work in flight."""
_INACTIVE_AFTER_NS: Final = CYCLE_NS
"""A container that has not tried to launch for this long has no work. A waiting launch is tried at
least twice in this time."""
_LOOK_NS: Final = 5 * _MS
"""The poll interval while several containers have work."""
_ALONE_LOOK_NS: Final = 10 * _MS
_IDLE_LOOK_NS: Final = 50 * _MS
_RESTING_LOOK_NS: Final = 180 * _MS
_RESTS_AFTER_NS: Final = 1_000 * _MS
_RESTING_AHEAD_NS: Final = 400 * _MS
"""While no container has work, leases are written less often. A lease's `written_ns` is then set
this far ahead, so that the lease stays valid until the next one. If the arbiter ends, it still
becomes void within a second."""
_MIN_PAUSE_NS: Final = 100_000
_DRAIN_LOOK_NS: Final = 200_000
_ANNOUNCE_NS: Final = 2 * _MS
"""The next window is written this long before it begins, so that the GPU need not wait for a late
arbiter."""
_OVERLAP_NS: Final = 2 * _MS
"""If work lasts beyond its window, the next window begins this long before the work's predicted
end. Otherwise the GPU would be idle if the work ended earlier than predicted."""
_IN_FLIGHT_NS: Final = 3 * _MS
"""Work that ended less than this before its window's end counts as having used the whole window."""
_COUNTED_NS: Final = 5 * _MS
"""A thread that waits for work adds its duration in the region at most this long after its end."""
_MIN_WINDOW_NS: Final = 2 * _MS
_DEBT_MAX_NS: Final = 10_000 * _MS
_BEAT_NS: Final = 2 * CYCLE_NS
"""A lease is written again after this time, so that containers see that the arbiter runs."""
_PREDICTED_MAX_NS: Final = 1_000 * _MS
_UNCAPPED_MIN_PPM: Final = 50_000


@dataclass(frozen=True, slots=True)
class Share:
    """A container's share of the GPU's time. A core_percent of 0 or 100 means no cap."""

    core_percent: int
    policy: Policy = Policy.FAIR

    @property
    def forced(self) -> bool:
        """Whether the share is a cap also while no other container uses the GPU."""
        return self.policy is Policy.CAPPED

    @property
    def capped(self) -> bool:
        return is_cap(self.core_percent)


@dataclass(slots=True)
class _Member:
    share: Share
    part_ppm: int = 0
    """The container's part of a cycle while all containers have work, in millionths."""
    offset_ppm: int = 0
    seen: Compute = field(default_factory=Compute)
    credit_ns: int = 0
    paid_until_ns: int = 0
    """The time up to which credit has been added. Only used for a forced share."""
    worked_ns: int = 0
    """When the container last had work."""
    idle_after_ns: int = -1
    """The latest launch before the container gave up a turn. It has no work until a later one."""
    charged_until_ns: int = 0
    """The end of the container's latest turn. 0: there was none."""
    turn_ns: int = 0
    """The total length of the turns for which `settle` has not counted the idle time yet."""
    busy_before_ns: int = 0
    """The container's `seen.busy_ns` before these turns."""
    idle_ns: int = 0
    """The total time of the container's turns in which none of its work ran."""
    lease: Lease = field(default_factory=lambda: Lease(0))

    @property
    def window_ns(self) -> int:
        """Return the length of the container's part of a cycle."""
        return CYCLE_NS * self.part_ppm // WHOLE_PPM

    @property
    def forced(self) -> bool:
        return self.share.forced and self.share.capped

    def settle(self, now_ns: int, after_ns: int) -> None:
        """Count the idle time of the latest turns if they ended more than `after_ns` ago. The idle
        time is at most the turns' length, whatever the tenant writes into its region."""
        if now_ns > self.charged_until_ns + after_ns:
            busy_ns = max(self.seen.busy_ns - self.busy_before_ns, 0)
            self.idle_ns += max(self.turn_ns - busy_ns, 0)
            self.turn_ns, self.busy_before_ns = 0, self.seen.busy_ns

    def has_work(self, now_ns: int) -> bool:
        seen = self.seen
        return (
            seen.launched_ns > self.idle_after_ns
            and max(seen.launched_ns, seen.busy_until_ns) > now_ns - _INACTIVE_AFTER_NS
        )


class Turns:
    """The turns on one GPU. Keys identify containers. The caller writes the returned leases."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._holder: str | None = None
        self._order: list[str] = []
        self._free_ns = 0
        """When the latest turn ends."""

    def set_shares(self, shares: Mapping[str, Share]) -> None:
        """Set the containers that share the GPU. New ones begin without credit or debt."""
        for key in self._members.keys() - shares.keys():
            del self._members[key]
            self._order.remove(key)
            self._holder = None if self._holder == key else self._holder
        for key, share in shares.items():
            if key not in self._members:
                self._members[key] = _Member(share)
                self._order.append(key)
            self._members[key].share = share
        offset = 0
        for key, part in parts_ppm(shares).items():
            member = self._members[key]
            member.part_ppm, member.offset_ppm = part, offset
            offset += part

    @property
    def launches_checked(self) -> bool:
        """Whether any container of the GPU has a cap. If so, all launches are checked, even while
        only one container has work: its work in flight must be known when another begins. If none
        has a cap, the driver's own time slices divide the GPU."""
        return any(member.share.capped for member in self._members.values())

    def rests(self, now_ns: int) -> bool:
        """Return whether no container has had work for a second."""
        worked_ns = max((member.worked_ns for member in self._members.values()), default=0)
        return now_ns > worked_ns + _RESTS_AFTER_NS

    def step(self, now_ns: int, seen: Mapping[str, Compute]) -> tuple[Mapping[str, Lease], int]:
        """Return the leases to write, and when to call again at the latest (nanoseconds).

        seen: the containers' current activity. A container that is left out has none.
        """
        working = []
        for key in self._order:
            member = self._members[key]
            member.seen = _plausible(seen.get(key, Compute()), now_ns)
            if key != self._holder:
                member.settle(now_ns, CYCLE_NS)
            if member.has_work(now_ns):
                working.append(key)
                if now_ns - member.worked_ns > CYCLE_NS:
                    self._begin_work(member, now_ns)
                member.worked_ns = now_ns
        leases: dict[str, Lease] = {}
        if self._holder is None:
            leases_end_ns = max((m.lease.end_ns for m in self._members.values()), default=0)
            if leases_end_ns > now_ns and len(working) > 1:
                leases |= self._close(now_ns, self._order)
        else:
            again_ns = self._end_turn(now_ns, working)
            if again_ns:
                return self._beats(now_ns, leases), max(again_ns, now_ns + _MIN_PAUSE_NS)
        self._pay_forced(now_ns)
        again_ns = self._next_turn(now_ns, working, leases)
        return self._beats(now_ns, leases), max(again_ns, now_ns + _MIN_PAUSE_NS)

    def _begin_work(self, member: _Member, now_ns: int) -> None:
        """Give one window's credit, less the debt, to a container that had no work for a cycle."""
        member.credit_ns = min(member.credit_ns, 0) + member.window_ns
        member.paid_until_ns = now_ns

    def _end_turn(self, now_ns: int, working: Sequence[str]) -> int:
        """End the turn of the holder, the container whose window is open. If the end of the turn is
        not known yet, return when to call again."""
        assert self._holder is not None
        member = self._members[self._holder]
        lease, busy_until_ns = member.lease, member.seen.busy_until_ns
        last_ns = max(lease.start_ns, busy_until_ns, member.seen.launched_ns)
        alone = working in ([], [self._holder])
        overlap_ns = 0 if alone or member.forced else _OVERLAP_NS
        end_ns = now_ns
        if now_ns < lease.end_ns:
            if alone and not member.forced:
                self._holder = None
                return 0
            if now_ns >= last_ns + IDLE_NS:
                used_ns = last_ns - lease.start_ns
                member.credit_ns = min(member.credit_ns, used_ns)
                member.idle_after_ns = member.seen.launched_ns
            elif now_ns < lease.end_ns - _ANNOUNCE_NS:
                return min(lease.end_ns - _ANNOUNCE_NS, now_ns + _LOOK_NS)
            elif alone or busy_until_ns > lease.end_ns + _DRAIN_LOOK_NS:
                return lease.end_ns
            else:
                end_ns = lease.end_ns
                used_ns = end_ns - lease.start_ns
        elif busy_until_ns > now_ns + overlap_ns and now_ns < lease.end_ns + CYCLE_NS:
            due_ns = max(busy_until_ns - overlap_ns, now_ns + _DRAIN_LOOK_NS)
            return min(due_ns, now_ns + 5 * _DRAIN_LOOK_NS)
        else:
            # If the arbiter was late, the containers have used their own parts of the cycles since.
            end_ns = min(now_ns, lease.end_ns + CYCLE_NS)
            least_ns = max(lease.end_ns - _IN_FLIGHT_NS, lease.start_ns)
            used_ns = max(least_ns, min(busy_until_ns, end_ns)) - lease.start_ns
        self._charge(member, used_ns, end_ns)
        self._order.remove(self._holder)
        self._order.append(self._holder)
        self._holder = None
        self._free_ns = end_ns
        return 0

    def _charge(self, holder: _Member, used_ns: int, end_ns: int) -> None:
        """Deduct the turn from the holder's credit. While another container's earlier work still
        ran, half of the time is deducted from that one's credit instead."""
        start_ns = holder.lease.start_ns
        for member in self._members.values():
            overlap_ns = min(member.seen.busy_until_ns, end_ns) - max(
                start_ns, member.charged_until_ns
            )
            if member is not holder and member.charged_until_ns and overlap_ns > 0:
                used_ns -= overlap_ns // 2
                self._pay(member, overlap_ns // 2)
                member.charged_until_ns = end_ns
        self._pay(holder, used_ns)
        holder.charged_until_ns = end_ns
        holder.turn_ns += end_ns - start_ns

    @staticmethod
    def _pay(member: _Member, used_ns: int) -> None:
        member.credit_ns = max(member.credit_ns - used_ns, -_DEBT_MAX_NS)

    def _next_turn(self, now_ns: int, working: Sequence[str], leases: dict[str, Lease]) -> int:
        """Choose the container that gets the next turn, or let all launch if none has work."""
        order = [key for key in self._order if key in working]
        if not order:
            return self._open(now_ns, self._order, leases)
        if len(order) == 1 and not self._members[order[0]].forced:
            others = [key for key in self._order if key != order[0]]
            leases.update(self._close(now_ns, others))
            return self._open(now_ns, order, leases)
        key = self._with_credit(order) or self._after_round(order)
        if key is None:
            return self._first_credit_ns(now_ns, order)
        member = self._members[key]
        member.settle(now_ns, _COUNTED_NS)
        start_ns = max(now_ns, self._free_ns)
        leases.update(self._close(start_ns, [each for each in self._order if each != key]))
        leases[key] = self._grant(key, now_ns, (start_ns, start_ns + member.credit_ns), True)
        self._holder = key
        return min(member.lease.end_ns - _ANNOUNCE_NS, start_ns + _LOOK_NS)

    def _with_credit(self, order: Sequence[str]) -> str | None:
        for key in order:
            member = self._members[key]
            least_ns = member.window_ns if member.forced else _MIN_WINDOW_NS
            if member.credit_ns >= min(least_ns, member.window_ns):
                return key
        return None

    def _after_round(self, order: Sequence[str]) -> str | None:
        """Add rounds of credit until a container whose share is not forced may have a turn, and
        return the container's key. Return None if all shares are forced."""
        free = [self._members[key] for key in order if not self._members[key].forced]
        if not free:
            return None
        total_ppm = sum(self._members[key].part_ppm for key in order)
        rounds = min(
            -((member.credit_ns - _MIN_WINDOW_NS) // (CYCLE_NS * member.part_ppm // total_ppm))
            for member in free
        )
        for member in free:
            member.credit_ns += max(rounds, 1) * CYCLE_NS * member.part_ppm // total_ppm
        return self._with_credit(order)

    def _pay_forced(self, now_ns: int) -> None:
        """Add a forced share's credit for the time that has passed, up to two windows."""
        for member in self._members.values():
            if not member.forced:
                continue
            passed_ns = now_ns - (member.paid_until_ns or now_ns)
            credit_ns = member.credit_ns + passed_ns * member.part_ppm // WHOLE_PPM
            member.credit_ns = min(credit_ns, 2 * member.window_ns)
            member.paid_until_ns = now_ns

    def _first_credit_ns(self, now_ns: int, order: Sequence[str]) -> int:
        waits = [
            (member.window_ns - member.credit_ns) * WHOLE_PPM // member.part_ppm
            for member in (self._members[key] for key in order)
        ]
        return now_ns + min(*waits, _IDLE_LOOK_NS)

    def _open(self, now_ns: int, keys: Sequence[str], leases: dict[str, Lease]) -> int:
        """Open windows for these containers, because no other one has work. Containers with forced
        shares still wait for their turns."""
        ahead_ns, look_ns = 0, _IDLE_LOOK_NS
        if self.rests(now_ns):
            ahead_ns, look_ns = _RESTING_AHEAD_NS, _RESTING_LOOK_NS
        for key in keys:
            member = self._members[key]
            if not member.forced:
                renewed_ns = now_ns + max(CYCLE_NS, look_ns)
                if member.lease.end_ns <= renewed_ns or member.lease.contended:
                    window = (now_ns, now_ns + 3 * CYCLE_NS + ahead_ns)
                    leases[key] = self._grant(key, now_ns + ahead_ns, window, False)
                member.credit_ns = min(member.credit_ns, 0) if len(keys) > 1 else 0
        if len(self._members) == 1:
            return now_ns + CYCLE_NS
        return now_ns + (_ALONE_LOOK_NS if len(keys) == 1 else look_ns)

    def _grant(self, key: str, written_ns: int, window: tuple[int, int], contended: bool) -> Lease:
        """Return a new lease. window: the begin and the end of its window, in nanoseconds."""
        member = self._members[key]
        part = (member.part_ppm, member.offset_ppm)
        member.lease = Lease(written_ns, *window, *part, contended, member.idle_ns)
        return member.lease

    def _close(self, now_ns: int, keys: Sequence[str]) -> dict[str, Lease]:
        """End these containers' windows at `now_ns`, unless they end before."""
        leases: dict[str, Lease] = {}
        for key in keys:
            if self._members[key].lease.end_ns > now_ns:
                leases[key] = self._grant(key, now_ns, (now_ns, now_ns), True)
        return leases

    def _beats(self, now_ns: int, leases: dict[str, Lease]) -> dict[str, Lease]:
        """Renew old leases, so that their readers see that the arbiter runs."""
        for key, member in self._members.items():
            lease = member.lease
            if key not in leases and now_ns >= lease.written_ns + _BEAT_NS:
                window = (lease.start_ns, lease.end_ns)
                leases[key] = self._grant(key, now_ns, window, lease.contended)
        return leases


def _plausible(seen: Compute, now_ns: int) -> Compute:
    """Correct the predicted end of a container's work. A killed process leaves its prediction in
    the region, so predictions are limited; a running process soon writes a new one. If a program
    still waits for work after its predicted end, the work is assumed to continue."""
    busy_until_ns = min(seen.busy_until_ns, seen.launched_ns + _PREDICTED_MAX_NS)
    if now_ns - _PREDICTED_MAX_NS < seen.waiting_since_ns and busy_until_ns < now_ns:
        busy_until_ns = now_ns + _ANNOUNCE_NS + 2 * _DRAIN_LOOK_NS
    return (
        seen if busy_until_ns == seen.busy_until_ns else replace(seen, busy_until_ns=busy_until_ns)
    )


def parts_ppm(shares: Mapping[str, Share]) -> Mapping[str, int]:
    """Divide a cycle among containers, in millionths. A container with a cap gets its percentage.
    The others get equal parts of the rest, at least 5 percent each. If the sum exceeds a cycle, all
    parts are scaled down."""
    uncapped = sum(not share.capped for share in shares.values())
    rest = WHOLE_PPM - sum(share.core_percent * 10_000 for share in shares.values() if share.capped)
    each = max(rest // uncapped, _UNCAPPED_MIN_PPM) if uncapped else 0
    parts = {
        key: share.core_percent * 10_000 if share.capped else each for key, share in shares.items()
    }
    total = sum(parts.values())
    if total > WHOLE_PPM:
        parts = {key: part * WHOLE_PPM // total for key, part in parts.items()}
    return parts
