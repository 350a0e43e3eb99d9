"""The lanes of one GPU: which intermittent containers may submit work now, and how much.

A container with a lane submits work at any time. The GPU's own time slices divide the time between
it and the container whose turn it is. The lag of a container is the progress that its share
promises, less its progress. The containers that saturate the GPU have one lag together.

While no lag is large, all lanes are open. If a lag is, the lanes of the other containers are
limited to their shares of GPU time, and to less if the lag grows. If a container lags although the
others are limited, it wants a turn (turns.py), in which lanes that do not lag are closed. If lanes
delay each other so much that all of them together do less than one container alone, their
containers take turns for a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpuslice.contract.grant_file import Policy
from gpuslice.contract.lease_file import LANE_MIN_NS, UNLIMITED_NS, WHOLE_PPM
from shim.arbiter.member import MS, Member

IN_FLIGHT_US: Final = 3_000
"""The most work in flight in a lane, and in a window while other containers wait."""
BACKGROUND_US: Final = 1_000
_DEPRIVED_NS: Final = 3 * MS
_SEVERE_NS: Final = 20 * MS
"""At this lag of one container the lanes of the others are closed."""
_LAG_MIN_NS: Final = -20 * MS
_LAG_MAX_NS: Final = 40 * MS
_GROUP_LAG_MAX_NS: Final = 80 * MS
"""More than one's own: a container that lacks CPU time lags for ever, at the others' cost."""
_SWITCHING_SAMPLE_NS: Final = 100 * MS
_SWITCHING_WEIGHT: Final = 0.3
_SWITCHING_MAX: Final = 0.4
"""Of the time of a sample. If more is lost, the program itself pauses."""
_REPAID_IN_NS: Final = 2_000 * MS
"""The time in which lanes are measured is given back to the group over about this time."""
_GROUP_MARGIN: Final = 0.005
"""Hand-overs take about this part of the time of the containers that saturate the GPU."""
_OPEN_MARGIN: Final = 0.01
"""A container whose lane is open gets turns if it is behind its share by this part of the time."""
_CLOSED_PART: Final = 1.03
"""A container whose lane is closed lives on its turns, at whose begin the work of others ends."""
_TURNS_NS: Final = 20 * MS
"""A lagging container's turns begin about this far apart."""
_LAG_OF_TURN_MIN_NS: Final = 1 * MS
_LAG_OF_TURN_MAX_NS: Final = 15 * MS
_SLOW: Final = 0.5
"""A lane is slow if its container has less than this part of its progress alone."""
_SLOW_SAMPLE_NS: Final = 30 * MS
_RETRY_NS: Final = 4_000 * MS
"""A lane that did not work is tried again after this."""
_BURST_NS: Final = 6 * MS
"""The most GPU time that a limited lane saves up."""
_CROWD: Final = 0.95
"""Containers whose lanes together make less progress than this take turns instead."""
_CROWD_SAMPLE_NS: Final = 100 * MS
_DEBT_NS: Final = 20 * MS
_UNDISTURBED: Final = 0.91
"""Work in the background leaves the others this part of their progress."""
_DISTURBED_MAX_NS: Final = 20 * MS
_TOLERATED_NS: Final = MS // 2
PAUSE_NS: Final = 1 * MS
"""Work in the background begins when the others have been idle for this long."""


class Lanes:
    """The lags of one GPU's containers. The caller passes only containers that have work."""

    def __init__(self) -> None:
        self.group_lag_ns = 0.0
        self._owed_ns = 0.0
        self.limited = False
        """Whether a container lags."""
        self._worst_ns = 0.0
        self._switching = _Switching()
        self._crowd_ns, self._crowd_done_ns = 0, 0.0
        self.background_open = False
        self._total_ppm = 1

    def fair(self, member: Member) -> float:
        """Return the container's part of the GPU's time while these containers have work."""
        return member.part_ppm / (WHOLE_PPM if member.capped else self._total_ppm)

    def _promised(self, member: Member) -> float:
        fair = self.fair(member)
        return fair * _CLOSED_PART if member.slow_since_ns else fair - min(_OPEN_MARGIN, fair / 25)

    def count(
        self,
        now_ns: int,
        working: Sequence[Member],
        elapsed_ns: int,
        holder: Member | None,
        measuring: bool,
    ) -> int:
        """Add the time since the step before to the lags. holder: whose turn it is. measuring: this
        turn is not counted. Return the GPU time of lanes other than the holder's."""
        self._total_ppm = sum(member.part_ppm for member in working) or 1
        lanes = [member for member in working if member.has_lane]
        if not lanes:
            self.group_lag_ns = self._worst_ns = self._owed_ns = 0
            self.limited = False
            return 0
        group = [member for member in working if not member.has_lane]
        holds = holder is not None and not holder.has_lane
        turn = holds and not measuring
        for member in lanes:
            done_ns = member.alone_ns(member.spent_step_ns)
            lag_ns = member.lag_ns + member.active_step_ns * self._promised(member) - done_ns
            member.lag_ns = min(max(lag_ns, _LAG_MIN_NS), _LAG_MAX_NS)
            if turn and _left_ns(member, now_ns) > LANE_MIN_NS + MS:
                self._try_lane(member, now_ns, done_ns)
        spent_ns = sum(member.spent_step_ns for member in lanes)
        if not group:
            self.group_lag_ns = self._owed_ns = 0
            if len(lanes) > 1:
                self._look_for_crowd(now_ns, lanes, elapsed_ns)
        elif holds or not all(member.capped for member in group):
            promised = elapsed_ns * max(sum(map(self.fair, group)) - _GROUP_MARGIN, 0)
            if measuring and not holds:
                self._owed_ns += promised
                promised = 0
            repaid_ns = self._owed_ns * elapsed_ns / _REPAID_IN_NS
            self._owed_ns -= repaid_ns
            lag_ns = self.group_lag_ns + promised + repaid_ns
            if turn and holder is not None and holder.utilization.value is not None:
                self._switching.count(elapsed_ns, spent_ns, holder.alone_ns(holder.spent_step_ns))
            if holds:
                lag_ns -= elapsed_ns - self.cost_ns(spent_ns)
            self.group_lag_ns = min(max(lag_ns, _LAG_MIN_NS), _GROUP_LAG_MAX_NS)
        # A container whose lane is closed catches up in its turns.
        lags = [m.lag_ns - (self._lag_of_turn_ns(m) if m.slow_since_ns else 0) for m in lanes]
        self._worst_ns = max(*lags, self.group_lag_ns)
        self.limited = self._worst_ns > (0 if self.limited else _DEPRIVED_NS)
        return spent_ns - (holder.spent_step_ns if holder is not None and holder.has_lane else 0)

    def cost_ns(self, spent_ns: int) -> float:
        """Return what lanes' work of this GPU time costs the container whose turn it is."""
        return spent_ns * (1 + self._switching.ratio)

    def lags(self, member: Member, ahead_ns: int) -> bool:
        """Return whether the container should have a turn in `ahead_ns`."""
        promised_ns = ahead_ns * self.fair(member) if member.slow_since_ns else 0
        lag_ns = member.lag_ns + promised_ns
        return lag_ns > self._lag_of_turn_ns(member) and lag_ns > self.group_lag_ns

    def _lag_of_turn_ns(self, member: Member) -> float:
        lag_ns = self.fair(member) * _TURNS_NS
        return min(max(lag_ns, _LAG_OF_TURN_MIN_NS), _LAG_OF_TURN_MAX_NS)

    def lags_much(self, member: Member) -> bool:
        """Return whether the container lags so much that its utilization may be wrong."""
        return self.limited and member.lag_ns >= _SEVERE_NS

    def turn_ns(self, member: Member) -> int:
        """Return how long a turn the container needs to catch up."""
        return int(member.lag_ns / max(1 - self.fair(member), 0.01))

    def _look_for_crowd(self, now_ns: int, lanes: Sequence[Member], elapsed_ns: int) -> None:
        """Let containers take turns for a while if one of them lags, and their lanes delay each
        other so much that all together make less progress than one alone."""
        if not self.limited:
            self._crowd_ns, self._crowd_done_ns = 0, 0
            return
        self._crowd_ns += elapsed_ns
        self._crowd_done_ns += sum(member.alone_ns(member.spent_step_ns) for member in lanes)
        if self._crowd_ns < _CROWD_SAMPLE_NS:
            return
        if self._crowd_done_ns < _CROWD * self._crowd_ns:
            for member in lanes:
                member.crowd_until_ns = now_ns + _RETRY_NS
                member.credit_ns, member.lag_ns = 0, 0
        self._crowd_ns, self._crowd_done_ns = 0, 0

    @staticmethod
    def _try_lane(member: Member, now_ns: int, done_ns: float) -> None:
        """Decide whether the lane beside turns of others is too slow to be used."""
        member.beside_ns += member.active_step_ns
        member.beside_done_ns += done_ns
        if member.beside_ns < _SLOW_SAMPLE_NS:
            return
        progress = member.beside_done_ns / member.beside_ns
        slow = progress < _SLOW
        if slow and progress > _SLOW / 2 and member.beside_ns < 2 * _SLOW_SAMPLE_NS:
            return  # the sample may have few launches
        member.slow_since_ns = now_ns if slow else 0
        member.beside_ns, member.beside_done_ns = 0, 0

    def turn_ended(self, member: Member, now_ns: int) -> None:
        """Try the lane again after a turn, if it was slow long ago."""
        if member.slow_since_ns and now_ns > member.slow_since_ns + _RETRY_NS:
            member.slow_since_ns, member.lag_ns = 0, 0

    def set(
        self, now_ns: int, working: Sequence[Member], holder: Member | None, measuring: bool
    ) -> None:
        """Open, limit or close the containers' lanes."""
        turn = holder is not None and not holder.has_lane
        exclusive = measuring or (holder is not None and holder.share.policy is Policy.TURNS)
        of_lag = holder is not None and holder.has_lane
        for member in working:
            gives_way = of_lag and member.lag_ns <= 0
            closed = exclusive or gives_way or (turn and member.slow_since_ns)
            if not member.has_lane or (closed and member is not holder):
                member.lane = (0, 0, 0)
                continue
            rate = 1.0
            if self.limited and member.lag_ns <= 0:
                severity = (self._worst_ns - _DEPRIVED_NS) / (_SEVERE_NS - _DEPRIVED_NS)
                rate = self.fair(member) * (1 - min(max(severity, 0), 1))
            if member.capped:
                rate = min(rate, member.part_ppm / WHOLE_PPM)
            if rate == 1:
                if member.lane[0] != UNLIMITED_NS:
                    member.lane = (UNLIMITED_NS, now_ns, 0)
            else:
                _limit(member, now_ns, int(rate * WHOLE_PPM), member is holder)

    def set_background(
        self, now_ns: int, working: Sequence[Member], background: Sequence[Member]
    ) -> None:
        """Open or close the lanes of containers that work in the background. They may submit work
        while all others pause, or do not lose progress by it."""
        quiet = all([self._tolerates(member, now_ns) for member in working])
        self.background_open = quiet
        for member in background:
            member.window = (0, 0, BACKGROUND_US)
            if not quiet:
                member.lane = (0, 0, 0)
            elif not member.lane[1]:
                member.lane = (UNLIMITED_NS, now_ns, 0)

    def _tolerates(self, member: Member, now_ns: int) -> bool:
        usage = member.utilization
        if member.paused_ns(now_ns) > PAUSE_NS:
            member.disturbed_ns = min(member.disturbed_ns, 0)
            return True
        if not member.has_lane or usage.unsure or now_ns > usage.again_ns:
            return False  # the utilization is measured first
        promised_ns = member.active_step_ns * _UNDISTURBED
        disturbed_ns = member.disturbed_ns + promised_ns - member.alone_ns(member.spent_step_ns)
        member.disturbed_ns = min(max(disturbed_ns, _LAG_MIN_NS), _DISTURBED_MAX_NS)
        return member.disturbed_ns <= (_TOLERATED_NS if self.background_open else 0)


class _Switching:
    """What lanes cost the containers that saturate the GPU, beside the time of the lanes' work: the
    GPU takes 0.15 to 0.2 ms to change between contexts."""

    def __init__(self) -> None:
        self.ratio = 0.0
        """That time, divided by the GPU time of the lanes' work."""
        self._elapsed_ns, self._beside_ns, self._lost_ns = 0, 0, 0.0

    def count(self, elapsed_ns: int, beside_ns: int, holder_ns: float) -> None:
        """Add a step of a turn: its time, the GPU time of lanes, and the progress of the holder."""
        self._elapsed_ns += elapsed_ns
        self._beside_ns += beside_ns
        self._lost_ns += elapsed_ns - beside_ns - holder_ns
        if self._elapsed_ns < _SWITCHING_SAMPLE_NS:
            return
        if self._beside_ns:
            lost_ns = min(max(self._lost_ns, 0), _SWITCHING_MAX * self._elapsed_ns)
            self.ratio += _SWITCHING_WEIGHT * (lost_ns / self._beside_ns - self.ratio)
        self._elapsed_ns, self._beside_ns, self._lost_ns = 0, 0, 0.0


def _left_ns(member: Member, now_ns: int) -> int:
    """Return how much more work the lane allows."""
    base_ns, from_ns, ppm = member.lane
    return base_ns + (now_ns - from_ns) * ppm // WHOLE_PPM - member.seen.spent_ns


def _limit(member: Member, now_ns: int, ppm: int, in_turn: bool) -> None:
    """Limit the lane to a rate. The lane is changed only if it must be, because each change is
    written into the lease."""
    base_ns, from_ns, before_ppm = member.lane
    spent_ns = member.seen.spent_ns
    if base_ns == UNLIMITED_NS or not from_ns:
        allowed_ns = spent_ns + _BURST_NS
    else:
        allowed_ns = base_ns + (now_ns - from_ns) * before_ppm // WHOLE_PPM
    least_ns = spent_ns - (0 if in_turn and not member.capped else _DEBT_NS)
    fits = least_ns <= allowed_ns <= spent_ns + 2 * _BURST_NS
    if base_ns == UNLIMITED_NS or not fits or abs(ppm - before_ppm) * 10 > before_ppm:
        allowed_ns = min(max(allowed_ns, least_ns), spent_ns + _BURST_NS)
        member.lane = (allowed_ns, now_ns, ppm)
