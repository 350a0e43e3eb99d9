"""One turn: why its holder has it, and what it tells about how much of the GPU the holder uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from shim.arbiter.member import MS, Member

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
    """When the work of earlier turns ends."""
    done_ns: int = 0
    """The holder's `done_ns` at the turn's begin."""
    others_ns: int = 0
    """GPU time of other containers' lanes during the turn."""
    sampled_ns: int = 0
    """When the sample of the holder's utilization began."""
    unsampled_ns: int = 0
    """GPU time of other containers' lanes before that."""

    def begin_sample(self, now_ns: int) -> None:
        """Measure the holder's utilization from now on."""
        self.holder.begin_sample()
        self.sampled_ns, self.unsampled_ns = now_ns, self.others_ns

    def judge(self, now_ns: int, used_ns: int, working: Sequence[Member]) -> None:
        """Note at the turn's end how much of the GPU the holder used. working: the containers that
        have work."""
        member = self.holder
        if self.kind is Kind.CREDIT:
            gpu_ns, own_ns = member.done_ns - self.done_ns, used_ns - self.others_ns
            member.suspect = gpu_ns < _SUSPECT * own_ns
            waited = [m for m in working if not m.has_lane]
            clean = used_ns > _DOUBTED_NS and not _ran(waited, member, member.window[0])
            member.doubted = clean and gpu_ns < _DOUBTED * own_ns
        elif self.kind is Kind.MEASURE and not member.utilization.begun:
            member.utilization.skip(now_ns)
        elif self._is_void(used_ns, working):
            member.utilization.cancel(now_ns + _VOID_PAUSE_NS)
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
