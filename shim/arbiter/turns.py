"""Gives turns on one GPU to containers that saturate it, and lanes to the others.
Time is an argument.

Containers that saturate the GPU take turns by deficit round robin with debt. A turn is a window in
which no other of them submits work. Its length is the container's share of a cycle of 100 ms. A
turn ends when the submitted work is almost done, at most one cycle after the window. Time beyond
the container's credit is debt, which makes its next windows shorter or fewer. A container without
work gives up its turn. If only one has work, it gets the whole GPU, or its share if capped.

Intermittent containers (member.py) have lanes (lanes.py). One that lags behind its share gets turns
too, in which those that saturate the GPU wait. A turn in which all others wait measures the
utilization, from which a container's class follows.

Invariants: while any container has work, at most one has an open window. While none has, all are
open. Over time a container makes the progress that its share promises while others want the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpuslice.contract.grant_file import Policy
from gpuslice.contract.lease_file import ALONE_US, CYCLE_NS, Lease
from gpuslice.contract.region_file import Compute
from shim.arbiter import credit, leases
from shim.arbiter.lanes import IN_FLIGHT_US, PAUSE_NS, Lanes
from shim.arbiter.member import IDLE_NS, MS, Member, Share, parts_ppm, plausible
from shim.arbiter.turn import Kind, Turn

_LOOK_NS: Final = 5 * MS
"""The poll interval while several containers have work."""
_TURNS_LOOK_NS: Final = 10 * MS
"""The same if none has a lane."""
_LANE_LOOK_NS: Final = 1 * MS
_ALONE_LOOK_NS: Final = 10 * MS
_IDLE_LOOK_NS: Final = 50 * MS
_RESTING_LOOK_NS: Final = 180 * MS
_RESTS_AFTER_NS: Final = 1_000 * MS
_RESTING_AHEAD_NS: Final = 420 * MS
"""While no container has work, leases are written less often. A lease's `written_ns` is then set
this far ahead, so that the lease stays valid until the next one. If the arbiter ends, it still
becomes void within a second."""
_MIN_PAUSE_NS: Final = 100_000
_DRAIN_LOOK_NS: Final = 200_000
_ANNOUNCE_NS: Final = 2 * MS
"""The next window is written this long before it begins, so that the GPU need not wait for a late
arbiter."""
_OVERLAP_NS: Final = 2 * MS
"""If work lasts beyond its window, the next window begins this long before the work's predicted
end. Otherwise the GPU would be idle if the work ended earlier than predicted."""
_IN_FLIGHT_NS: Final = IN_FLIGHT_US * 1000
"""Work that ended less than this before its window's end counts as having used the whole window."""
_ELAPSED_MAX_NS: Final = 20 * MS
"""If the arbiter was late, at most this time counts for lags."""

_TURN_OF_LAG_MAX_NS: Final = 50 * MS
_MEASURE_NS: Final = 30 * MS
_MEASURE_FIRST_NS: Final = 40 * MS
_SAMPLE_ALONE_NS: Final = 100 * MS


class Turns:
    """The turns on one GPU. Keys identify containers. The caller writes the returned leases."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._order: list[Member] = []
        self._turn: Turn | None = None
        self._previous: Member | None = None
        self._free_ns = 0
        """When the latest turn ends."""
        self._busy_until_ns = 0
        """When the work of its holder ends."""
        self._stepped_ns = 0
        self._working: Sequence[Member] = ()
        """The containers that have work, without those in the background."""
        self._background: Sequence[Member] = ()
        self._laned = False
        """Whether a container that has work has a lane."""
        self._alone: Member | None = None
        """The container whose utilization is measured, because only it has work."""
        self.lanes = Lanes()

    def set_shares(self, shares: Mapping[str, Share]) -> None:
        """Set the containers that share the GPU. New ones begin without credit or debt."""
        for key in self._members.keys() - shares.keys():
            member = self._members.pop(key)
            self._order.remove(member)
            if self._turn and self._turn.holder is member:
                self._turn = None
        for key, share in shares.items():
            if key not in self._members:
                self._members[key] = Member(key, share)
                self._order.append(self._members[key])
            member = self._members[key]
            member.share, member.capped, member.written_ns = share, share.capped, 0
        offset = 0
        for key, part in parts_ppm(shares).items():
            member = self._members[key]
            member.part_ppm, member.offset_ppm = part, offset
            offset += part

    @property
    def launches_checked(self) -> bool:
        """Whether any container of the GPU has a percentage or a policy. If so, all launches are
        checked, even while only one container has work: its work in flight must be known when
        another begins. Otherwise the driver's own time slices divide the GPU."""
        return any(
            member.share.has_percent or member.share.policy in (Policy.TURNS, Policy.BACKGROUND)
            for member in self._order
        )

    def rests(self, now_ns: int) -> bool:
        """Return whether no container has had work for a second."""
        worked_ns = max((member.worked_ns for member in self._order), default=0)
        return now_ns > worked_ns + _RESTS_AFTER_NS

    def step(self, now_ns: int, seen: Mapping[str, Compute]) -> tuple[Mapping[str, Lease], int]:
        """Return the leases to write, and when to call again at the latest (nanoseconds).

        seen: the containers' current activity. A container that is left out has none.
        """
        elapsed_ns = min(now_ns - self._stepped_ns, _ELAPSED_MAX_NS) if self._stepped_ns else 0
        self._stepped_ns = now_ns
        self._observe(now_ns, elapsed_ns, seen)
        turn = self._turn
        others_ns = self.lanes.count(now_ns, self._working, elapsed_ns, *self._held())
        if turn:
            turn.others_ns += others_ns
        self._measure_alone(now_ns)
        credit.add_capped(self._order, now_ns)
        if not turn and len(self._working) > 1:
            self._close(now_ns, [m for m in self._order if not m.contended])
        again_ns = self._end_turn(now_ns, turn) if turn else 0
        again_ns = again_ns or self._next_turn(now_ns)
        self.lanes.set(now_ns, self._working, *self._held())
        if self._background:
            self.lanes.set_background(now_ns, self._working, self._background)
            look_ns = _LANE_LOOK_NS // 2 if self.lanes.background_open else _LANE_LOOK_NS
            again_ns = min(again_ns, now_ns + look_ns)
        holder = self._turn.holder if self._turn else None
        only = holder or (self._working[0] if len(self._working) == 1 else None)
        lanes = [m for m in (*self._working, *self._background) if m.lane[1]]
        exclusive = only if lanes in ([], [only]) else None
        ahead_ns = _RESTING_AHEAD_NS if self.rests(now_ns) else 0
        changed = leases.changed(self._order, exclusive, now_ns, ahead_ns)
        return changed, max(again_ns, now_ns + _MIN_PAUSE_NS)

    def _held(self) -> tuple[Member | None, bool]:
        """Return whose turn it is, and whether the turn measures the utilization."""
        turn = self._turn
        return (turn.holder, turn.kind is Kind.MEASURE) if turn else (None, False)

    def glance(self, now_ns: int, activity: Callable[[str], Compute]) -> int:
        """Return when to call again if nothing has to change. 0: call `step`.

        That is so while a turn goes on and no container has a lane, or while all containers rest.
        A glance costs less than a step, because it only reads regions: one, or all of them.
        """
        turn = self._turn
        if not turn and self.rests(now_ns):
            return self._glance_at_rest(now_ns, activity)
        if not turn or turn.kind is not Kind.CREDIT or self._background or self._laned:
            return 0
        start_ns, planned_ns, _ = turn.holder.window
        seen = plausible(activity(turn.holder.key), now_ns)
        announced_ns = planned_ns - _ANNOUNCE_NS
        idle_ns = max(start_ns, seen.busy_until_ns, seen.launched_ns) + IDLE_NS
        if len(self._working) < 2 or now_ns >= min(announced_ns, idle_ns):
            return 0
        return min(announced_ns, idle_ns, now_ns + _TURNS_LOOK_NS)

    def _glance_at_rest(self, now_ns: int, activity: Callable[[str], Compute]) -> int:
        again_ns = now_ns + (_RESTING_LOOK_NS if len(self._order) > 1 else CYCLE_NS)
        for member in self._order:
            again_ns = min(again_ns, member.written_ns + leases.BEAT_NS)
            # An open window must be longer than until the next look.
            if not member.capped and not member.share.background:
                again_ns = min(again_ns, member.window[1] - _RESTING_LOOK_NS)
            if again_ns <= now_ns or activity(member.key).launched_ns != member.seen.launched_ns:
                return 0
        return again_ns

    def _observe(self, now_ns: int, elapsed_ns: int, seen: Mapping[str, Compute]) -> None:
        working: list[Member] = []
        background: list[Member] = []
        for member in self._order:
            member.observe(now_ns, elapsed_ns, seen.get(member.key, Compute()))
            if not member.has_work(now_ns):
                continue
            (background if member.share.background else working).append(member)
            if now_ns - member.worked_ns > CYCLE_NS:
                # A container that had no work for a cycle begins with one window, less its debt.
                member.credit_ns = min(member.credit_ns, 0) + member.window_ns
                member.paid_until_ns, member.lag_ns = now_ns, 0
            member.worked_ns = now_ns
        self._working, self._background = working, background
        self._laned = any(member.has_lane for member in working)

    def _measure_alone(self, now_ns: int) -> None:
        """Measure the utilization of a container while only it has work."""
        only = self._working[0] if len(self._working) == 1 and not self._turn else None
        if only and (only.capped or self.lanes.background_open):
            paused_ns = only.paused_ns(now_ns)
            if self._alone is only and paused_ns > PAUSE_NS:  # so the background has begun to work
                only.end_sample(now_ns, paused_ns)
            only = None
        if self._alone and self._alone is not only:
            self._alone.utilization.cancel()  # others have begun to work
        if only and only is not self._alone:
            only.begin_sample()
        elif only and only.utilization.sampled_ns(only.active_ns) > _SAMPLE_ALONE_NS:
            only.end_sample(now_ns)
            only.begin_sample()
        self._alone = only

    def _wanting(self, now_ns: int, besides: Member | None = None) -> Sequence[tuple[Member, Kind]]:
        """Return the containers that should have a turn for another reason than credit."""
        working = self._working
        saturated = any(not member.has_lane for member in working)
        if len(working) < 2 and not any(member.capped for member in working):
            return []
        # Only then does it matter how much those with a lane use.
        limits = saturated or self.lanes.limited or bool(self._background)
        measured, lagging = [], []
        for member in working:
            usage = member.utilization
            if member is besides or member.share.policy is Policy.TURNS:
                continue
            useful = limits and not member.capped
            doubted = self.lanes.lags_much(member) if member.has_lane else member.doubted
            old = now_ns > (usage.doubted_ns if doubted else usage.again_ns)
            needed = usage.unsure or (old and (useful if member.has_lane else member.suspect))
            if needed and now_ns > usage.not_before_ns:
                measured.append((member, Kind.MEASURE))
            elif member.has_lane and saturated and self.lanes.lags(member, _ANNOUNCE_NS):
                lagging.append((member, Kind.LAG))
        return lagging + measured

    def _end_turn(self, now_ns: int, turn: Turn) -> int:
        """End the turn. If the end is not known yet, return when to call again."""
        member = turn.holder
        start_ns, planned_ns, _ = member.window
        waiting = [m for m in self._working if not m.has_lane and m is not member]
        turn.drained_ns = max(turn.drained_ns, *(m.seen.busy_until_ns for m in waiting), 0)
        busy_until_ns = turn.busy_until_ns()
        last_ns = max(start_ns, busy_until_ns, member.seen.launched_ns)
        clean_ns = max(start_ns + _ANNOUNCE_NS, turn.drained_ns)
        begins = clean_ns < now_ns < planned_ns and not member.utilization.begun
        if turn.kind is not Kind.CREDIT and begins:
            turn.begin_sample(now_ns)
        alone = self._working in ([], [member])
        others = waiting or self._wanting(now_ns, member)
        overlap_ns = 0 if alone or member.capped else _OVERLAP_NS
        end_ns = now_ns
        if now_ns < planned_ns:
            if alone and not member.capped:
                self._turn = None
                return 0
            if now_ns >= last_ns + IDLE_NS:
                used_ns = last_ns - start_ns
                member.credit_ns = min(member.credit_ns, used_ns)
                member.idle_after_ns = member.seen.launched_ns
                self._working = [m for m in self._working if m is not member]
            elif now_ns < planned_ns - _ANNOUNCE_NS:
                return self._continue_turn(now_ns, turn)
            else:
                # A sample ends while the processes submit work, as it began.
                active_ns = member.seen.launched_ns + _LOOK_NS
                submits = busy_until_ns - 2 * _IN_FLIGHT_NS < now_ns < active_ns
                sampled = turn.kind is Kind.MEASURE and submits and not member.has_lane
                outlasts = busy_until_ns > planned_ns + _DRAIN_LOOK_NS and not sampled
                if alone or (others and outlasts):
                    return planned_ns
                end_ns = planned_ns
                due_ns = busy_until_ns - _DRAIN_LOOK_NS
                if waiting and due_ns > now_ns and turn.kind is Kind.CREDIT and not member.capped:
                    # Its next launch would outlast the window.
                    end_ns = min(planned_ns, due_ns)
                    self._close(now_ns, [member])
                used_ns = end_ns - start_ns
        elif (
            (others or (member.capped and not credit.suffices(member, now_ns - start_ns)))
            and not member.has_lane
            and busy_until_ns > now_ns + overlap_ns
            and now_ns < planned_ns + CYCLE_NS
        ):
            due_ns = max(busy_until_ns - overlap_ns, now_ns + _DRAIN_LOOK_NS)
            return min(due_ns, now_ns + 5 * _DRAIN_LOOK_NS)
        else:
            # If the arbiter was late, the containers have used their own parts of the cycles since.
            end_ns = min(now_ns, planned_ns + CYCLE_NS)
            least_ns = max(planned_ns - _IN_FLIGHT_NS, start_ns)
            used_ns = max(least_ns, min(busy_until_ns, end_ns)) - start_ns
        self._finish(now_ns, turn, used_ns, end_ns)
        return 0

    def _continue_turn(self, now_ns: int, turn: Turn) -> int:
        """Return when to look again at a turn in its window. End the window of a container that
        saturates the GPU early if another one lags."""
        member = turn.holder
        start_ns, planned_ns, _ = member.window
        announced_ns = planned_ns - _ANNOUNCE_NS
        if turn.kind is not Kind.CREDIT:
            look_ns = _TURNS_LOOK_NS if member.utilization.begun else _LANE_LOOK_NS
            return min(announced_ns, now_ns + look_ns)
        if not self._laned:
            return min(announced_ns, now_ns + _TURNS_LOOK_NS)
        wanting = self._wanting(now_ns, member)
        if now_ns > start_ns + _LOOK_NS and any(kind is Kind.LAG for _, kind in wanting):
            member.window = (start_ns, now_ns + _ANNOUNCE_NS, IN_FLIGHT_US)
            return now_ns + _ANNOUNCE_NS // 2
        closed = any(member.slow_since_ns for member in self._working)
        return min(announced_ns, now_ns + (2 * _LANE_LOOK_NS if closed else _LOOK_NS))

    def _finish(self, now_ns: int, turn: Turn, used_ns: int, end_ns: int) -> None:
        """Charge the turn to its holder, and add it to the sample of the holder's utilization."""
        member = turn.holder
        if not member.has_lane:
            beside_ns = int(self.lanes.cost_ns(turn.others_ns))
            measures = turn.kind is Kind.MEASURE
            credit.charge(self._order, member, used_ns, end_ns, turn.delay_ns, beside_ns, measures)
        turn.judge(now_ns, used_ns, self._working)
        if turn.kind is Kind.LAG:
            self.lanes.turn_ended(member, now_ns)
        self._order.remove(member)
        self._order.append(member)
        self._previous, self._turn, self._free_ns = member, None, end_ns
        self._busy_until_ns = turn.busy_until_ns()

    def _next_turn(self, now_ns: int) -> int:
        """Choose the container that gets the next turn, or let all launch if none has work. Return
        when to call again."""
        working = self._working
        if not working:
            return self._open(now_ns, [m for m in self._order if not m.share.background])
        if len(working) == 1 and not working[0].capped:
            self._close(now_ns, [m for m in self._order if m is not working[0]])
            return self._open(now_ns, working)
        saturating = [m for m in self._order if m in working and not m.has_lane]
        chosen = self._choose(now_ns, saturating)
        if chosen is None:
            look_ns = _LANE_LOOK_NS if self.lanes.limited else _LOOK_NS
            return now_ns + credit.until_capped_ns(saturating, look_ns)
        member, kind, length_ns = chosen
        start_ns = now_ns if member is self._previous else max(now_ns, self._free_ns)
        self._close(start_ns, [m for m in self._order if m is not member])
        member.window = (start_ns, start_ns + length_ns, IN_FLIGHT_US)
        others = [m for m in working if m is not member and not m.has_lane]
        ends_ns = [start_ns, *(m.seen.busy_until_ns for m in others)]
        if self._previous in others:
            ends_ns.append(self._busy_until_ns)
        # Both work at half speed until others' work ends.
        self._turn = Turn(member, kind, 2 * max(ends_ns) - start_ns, member.done_ns)
        look_ns = _ANNOUNCE_NS + _DRAIN_LOOK_NS if member.has_lane else _LOOK_NS
        return min(member.window[1] - _ANNOUNCE_NS, start_ns + look_ns)

    def _choose(self, now_ns: int, saturating: Sequence[Member]) -> tuple[Member, Kind, int] | None:
        for member, kind in self._wanting(now_ns):
            if kind is Kind.LAG:
                length_ns = min(self.lanes.turn_ns(member), _TURN_OF_LAG_MAX_NS)
                return member, kind, max(length_ns, credit.MIN_WINDOW_NS)
            unsure = member.utilization.unsure
            return member, kind, _MEASURE_FIRST_NS if unsure else _MEASURE_NS
        found = credit.first_with_credit(saturating)
        return (found, Kind.CREDIT, found.credit_ns) if found else None

    def _open(self, now_ns: int, members: Sequence[Member]) -> int:
        """Open windows for these containers, because no other one has work. Containers with capped
        shares still wait for their turns."""
        ahead_ns, look_ns = 0, _IDLE_LOOK_NS
        if self.rests(now_ns):
            ahead_ns, look_ns = _RESTING_AHEAD_NS, _RESTING_LOOK_NS
        for member in members:
            if not member.capped:
                renewed_ns = now_ns + max(CYCLE_NS, look_ns)
                if member.window[1] <= renewed_ns or member.contended:
                    member.window = (now_ns, now_ns + 3 * CYCLE_NS + ahead_ns, ALONE_US)
                member.credit_ns = min(member.credit_ns, 0) if len(members) > 1 else 0
        if len(self._order) == 1:
            return now_ns + CYCLE_NS
        return now_ns + (_ALONE_LOOK_NS if len(members) == 1 else look_ns)

    @staticmethod
    def _close(at_ns: int, members: Sequence[Member]) -> None:
        """End these containers' windows at `at_ns`, unless they end before."""
        for member in members:
            start_ns, end_ns, _ = member.window
            if end_ns > at_ns:
                member.window = (min(start_ns, at_ns), at_ns, IN_FLIGHT_US)
