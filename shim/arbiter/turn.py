"""One turn: why its holder has it, and what it tells about how much of the GPU the holder uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from shim.arbiter.member import IDLE_NS, LONG_NS, MS, Member

_SUSPECT: Final = 0.85
"""A container that uses less of its turn than this is measured again."""
_DOUBTED: Final = 0.5
"""One that uses less than this is measured soon."""
_DOUBTED_NS: Final = 20 * MS
"""Shorter turns say little, because work is in flight at their ends."""
_OTHERS_MAX: Final = 0.02
"""A sample is void if other lanes worked for more than this part of its time."""
_TOLERATED_NS: Final = 1 * MS
"""Or if earlier work of others lasted this long into it."""
_DELAY_MAX_NS: Final = 4 * MS
"""An arbiter that was late sees others' work for much longer."""
_DISTURBED_NS: Final = 2 * MS
"""A whole turn is no sample if others took more of it than this."""
_VOID_PAUSE_NS: Final = 100 * MS
"""The pause after a void sample. Measuring again and again would take others' time."""


class Kind(Enum):
    """Why a container has a turn."""

    CREDIT = "it saturates the GPU, and has credit"
    LAG = "its lane did not suffice for its share"
    MEASURE = "its utilization is unknown, or was measured long ago"


@dataclass(slots=True)
class Turn:
    holder: Member
    kind: Kind
    drained_ns: int
    """When the work of earlier turns ends. Not before the turn's begin."""
    done_ns: int = 0
    """The holder's `done_ns` at the turn's begin."""
    others_ns: int = 0
    """GPU time of other containers' lanes during the turn."""
    sampled_ns: int = 0
    """When the sample of the holder's utilization began."""
    unsampled_ns: int = 0
    """GPU time of other containers' lanes before that."""

    @property
    def delay_ns(self) -> int:
        """The time that earlier work of others took from the turn."""
        return min((self.drained_ns - self.holder.window[0]) // 2, _DELAY_MAX_NS)

    def busy_until_ns(self) -> int:
        """Return when the holder's work ends. Its library does not know that the end of others'
        work has delayed the first launch of the turn, until that launch is done."""
        seen = self.holder.seen
        late_ns = seen.busy_until_ns - self.holder.window[0] - (seen.spent_ns - self.done_ns)
        return seen.busy_until_ns + (self.delay_ns if late_ns < self.delay_ns / 2 else 0)

    def begin_sample(self, now_ns: int) -> None:
        """Measure the holder's utilization from now on."""
        self.holder.begin_sample()
        self.sampled_ns, self.unsampled_ns = now_ns, self.others_ns

    def judge(self, now_ns: int, used_ns: int, working: Sequence[Member]) -> None:
        """Note at the turn's end how much of the GPU the holder used. working: the containers that
        have work."""
        member, usage, end_ns = self.holder, self.holder.utilization, self.holder.window[1]
        gpu_ns = member.done_ns - self.done_ns
        paused = now_ns < end_ns and gpu_ns > 0 and member.paused_ns(now_ns) == IDLE_NS
        own_ns = max(used_ns - self.others_ns - self.delay_ns, gpu_ns) + paused * IDLE_NS
        late = now_ns > end_ns + LONG_NS
        burst, member.paused = paused and member.paused, paused
        if burst and max(self.others_ns, self.delay_ns) < _DISTURBED_NS:
            # The whole turn is a sample, because the work may have ended early in it.
            usage.begin(self.done_ns, member.active_ns - own_ns)
            member.end_sample(now_ns)
        elif self.kind is Kind.CREDIT:
            member.suspect = gpu_ns < _SUSPECT * own_ns
            waited = [m for m in working if not m.has_lane]
            clean = used_ns > _DOUBTED_NS and not _ran(waited, member, member.window[0])
            member.doubted = clean and gpu_ns < _DOUBTED * own_ns
        elif self.kind is Kind.MEASURE and (late or not (usage.begun or self.drained_ns > end_ns)):
            usage.skip(now_ns)
        elif late or self._is_void(used_ns, working):
            usage.cancel(now_ns + _VOID_PAUSE_NS)
        else:
            member.end_sample(now_ns)

    def _is_void(self, used_ns: int, working: Sequence[Member]) -> bool:
        """Return whether others worked during the sample."""
        others_ns = self.others_ns - self.unsampled_ns
        return others_ns > _OTHERS_MAX * used_ns or _ran(working, self.holder, self.sampled_ns)


def _ran(members: Sequence[Member], besides: Member, since_ns: int) -> bool:
    """Return whether work of one of these containers lasted until after `since_ns`."""
    late_ns = since_ns + _TOLERATED_NS
    return any(member is not besides and member.seen.busy_until_ns > late_ns for member in members)
