"""The lanes of one GPU: which intermittent containers may submit work now, and how much.

A container with a lane submits work at any time. The GPU's own time slices divide the time between
it and the container whose turn it is. The lag of a container is the progress that its share
promises, less its progress. The containers that saturate the GPU have one lag together.

While no lag is large, all lanes are open. If a lag is, the lanes of the other containers are
limited to their shares of GPU time, and to less if the lag grows. If a container lags although the
others are limited, it wants a turn (turns.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpuslice.contract.grant_file import Policy
from gpuslice.contract.lease_file import UNLIMITED_NS, WHOLE_PPM
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
"""More than a single one's: a container that lacks CPU time lags for ever, and must not take the
time of those that saturate the GPU."""
_GROUP_MARGIN: Final = 0.005
"""Hand-overs take about this part of the time of the containers that saturate the GPU."""
_OPEN_MARGIN: Final = 0.012
"""A container whose lane is open gets turns if it is behind its share by this part of the time.
While a lane is open, the GPU does more in all than in a turn."""
_CLOSED_PART: Final = 1.02
"""A container whose lane is closed lives on its turns, at whose begin the work of others ends."""
_TURNS_NS: Final = 20 * MS
"""A lagging container's turns begin about this far apart."""
_LAG_OF_TURN_MIN_NS: Final = 1 * MS
_LAG_OF_TURN_MAX_NS: Final = 15 * MS
_SLOW: Final = 0.5
"""A lane is slow if its container has less than this part of its progress alone."""
_SLOW_RETRY_NS: Final = 1_000 * MS
_SLOW_SAMPLE_NS: Final = 5 * MS
_BURST_NS: Final = 4 * MS
"""The most GPU time that a limited lane saves up."""
_DEBT_NS: Final = 20 * MS
_UNDISTURBED: Final = 0.91
"""Work in the background leaves the others this part of their progress."""
_DISTURBED_MAX_NS: Final = 20 * MS
_PAUSE_NS: Final = 1 * MS
"""Work in the background begins when the others have been idle for this long."""


class Lanes:
    """The lags of one GPU's containers. The caller passes only containers that have work."""

    def __init__(self) -> None:
        self.group_lag_ns = 0.0
        self.limited = False
        """Whether a container lags."""
        self._worst_ns = 0.0
        self.background_open = False
        self._total_ppm = 1

    def fair(self, member: Member) -> float:
        """Return the container's part of the GPU's time while these containers have work."""
        return member.part_ppm / (WHOLE_PPM if member.forced else self._total_ppm)

    def _promised(self, member: Member) -> float:
        fair = self.fair(member)
        return fair * _CLOSED_PART if member.slow_since_ns else fair - min(_OPEN_MARGIN, fair / 9)

    def count(
        self, working: Sequence[Member], elapsed_ns: int, holder: Member | None, measuring: bool
    ) -> int:
        """Add the time since the step before to the lags. holder: whose turn it is. measuring: this
        turn is not counted. Return the GPU time of lanes other than the holder's."""
        self._total_ppm = sum(member.part_ppm for member in working) or 1
        lanes = [member for member in working if member.has_lane]
        if not lanes:
            self.group_lag_ns = self._worst_ns = 0
            self.limited = False
            return 0
        group = [member for member in working if not member.has_lane]
        turn = holder is not None and not holder.has_lane and not measuring
        for member in lanes:
            done_ns = member.alone_ns(member.spent_step_ns)
            lag_ns = member.lag_ns + member.active_step_ns * self._promised(member) - done_ns
            member.lag_ns = min(max(lag_ns, _LAG_MIN_NS), _LAG_MAX_NS)
            if turn and member.lane[1]:
                member.beside_ns += member.active_step_ns
                member.beside_done_ns += done_ns
        spent_ns = sum(member.spent_step_ns for member in lanes)
        if not group:
            self.group_lag_ns = 0
        elif not measuring and (turn or not all(member.forced for member in group)):
            promised = elapsed_ns * max(sum(map(self.fair, group)) - _GROUP_MARGIN, 0)
            lag_ns = self.group_lag_ns + promised - (elapsed_ns - spent_ns if turn else 0)
            self.group_lag_ns = min(max(lag_ns, _LAG_MIN_NS), _GROUP_LAG_MAX_NS)
        # A container whose lane is closed catches up in its turns.
        lags = [m.lag_ns - (self._lag_of_turn_ns(m) if m.slow_since_ns else 0) for m in lanes]
        self._worst_ns = max(*lags, self.group_lag_ns)
        self.limited = self._worst_ns > (0 if self.limited else _DEPRIVED_NS)
        return spent_ns - (holder.spent_step_ns if holder is not None and holder.has_lane else 0)

    def lags(self, member: Member, ahead_ns: int) -> bool:
        """Return whether the container should have a turn in `ahead_ns`."""
        promised_ns = ahead_ns * self.fair(member) if member.slow_since_ns else 0
        lag_ns = member.lag_ns + promised_ns
        return lag_ns > self._lag_of_turn_ns(member) and lag_ns > self.group_lag_ns

    def _lag_of_turn_ns(self, member: Member) -> float:
        lag_ns = self.fair(member) * _TURNS_NS
        return min(max(lag_ns, _LAG_OF_TURN_MIN_NS), _LAG_OF_TURN_MAX_NS)

    def lags_in_ns(self, working: Sequence[Member]) -> float:
        """Return in what time the first container with a closed lane should have a turn."""
        return min(
            (
                max(self._lag_of_turn_ns(member) - member.lag_ns, 0) / self.fair(member)
                for member in working
                if member.slow_since_ns
            ),
            default=_LAG_MAX_NS,
        )

    def turn_ns(self, member: Member) -> int:
        """Return how long a turn the container needs to catch up."""
        return int(member.lag_ns / max(1 - self.fair(member), 0.01))

    def turn_ended(self, member: Member, now_ns: int) -> None:
        """Decide after a turn whether the lane beside turns of others is too slow to be used."""
        if member.slow_since_ns and now_ns > member.slow_since_ns + _SLOW_RETRY_NS:
            member.slow_since_ns, member.lag_ns = 0, 0
        elif not member.slow_since_ns and member.beside_ns > _SLOW_SAMPLE_NS:
            slow = member.beside_done_ns < _SLOW * member.beside_ns
            member.slow_since_ns = now_ns if slow else 0
        member.beside_ns, member.beside_done_ns = 0, 0

    def set(
        self, now_ns: int, working: Sequence[Member], holder: Member | None, measuring: bool
    ) -> None:
        """Open, limit or close the containers' lanes."""
        turn = holder is not None and not holder.has_lane
        exclusive = measuring or (holder is not None and holder.share.policy is Policy.TURNS)
        for member in working:
            closed = (exclusive or (turn and member.slow_since_ns)) and member is not holder
            if not member.has_lane or closed:
                member.lane = (0, 0, 0)
                continue
            rate = 1.0
            if self.limited and member.lag_ns <= 0:
                severity = (self._worst_ns - _DEPRIVED_NS) / (_SEVERE_NS - _DEPRIVED_NS)
                rate = self.fair(member) * (1 - min(max(severity, 0), 1))
            if member.forced:
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
        quiet = all(self._tolerates(member, now_ns) for member in working)
        self.background_open = quiet
        for member in background:
            member.window = (0, 0, BACKGROUND_US)
            if not quiet:
                member.lane = (0, 0, 0)
            elif not member.lane[1]:
                member.lane = (UNLIMITED_NS, now_ns, 0)

    def _tolerates(self, member: Member, now_ns: int) -> bool:
        pauses = now_ns > max(member.seen.launched_ns, member.seen.busy_until_ns) + _PAUSE_NS
        usage = member.utilization
        if not pauses and (usage.unsure or now_ns > usage.again_ns):
            return False  # its utilization is measured first
        if not member.has_lane:
            return pauses
        promised_ns = member.active_step_ns * _UNDISTURBED
        disturbed_ns = member.disturbed_ns + promised_ns - member.alone_ns(member.spent_step_ns)
        member.disturbed_ns = min(max(disturbed_ns, 0), _DISTURBED_MAX_NS)
        return pauses or member.disturbed_ns <= (_PAUSE_NS if self.background_open else 0)


def _limit(member: Member, now_ns: int, ppm: int, in_turn: bool) -> None:
    """Limit the lane to a rate. The lane is changed only if it must be, because each change is
    written into the lease."""
    base_ns, from_ns, before_ppm = member.lane
    spent_ns = member.seen.spent_ns
    if base_ns == UNLIMITED_NS or not from_ns:
        allowed_ns = spent_ns + _BURST_NS
    else:
        allowed_ns = base_ns + (now_ns - from_ns) * before_ppm // WHOLE_PPM
    least_ns = spent_ns - (0 if in_turn and not member.forced else _DEBT_NS)
    fits = least_ns <= allowed_ns <= spent_ns + 2 * _BURST_NS
    if base_ns == UNLIMITED_NS or not fits or abs(ppm - before_ppm) * 10 > before_ppm:
        allowed_ns = min(max(allowed_ns, least_ns), spent_ns + _BURST_NS)
        member.lane = (allowed_ns, now_ns, ppm)
