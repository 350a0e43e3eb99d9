"""The clock of a container, which may be in a time namespace.

Regions and leases hold times of the container's CLOCK_MONOTONIC. Its offset follows from launches:
each was made between two looks at the region. Time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

from gpuslice.contract.lease_file import Lease
from gpuslice.contract.region_file import Compute

_LATE_NS: Final = 20_000_000
"""A thread may write a launch's time, and the arbiter may read it, so late."""
_AHEAD_MAX_NS: Final = 2**62
"""The kernel allows no more. A program may write any number into its region."""
_TIMES: Final = {
    Compute: ("launched_ns", "busy_until_ns", "unfinished_since_ns", "waiting_since_ns"),
    Lease: ("written_ns", "start_ns", "end_ns", "lane_from_ns"),
}

_Record = TypeVar("_Record", Compute, Lease)


@dataclass(slots=True)
class Clock:
    """ahead_ns: by how much the container's clock is ahead of the host's."""

    ahead_ns: int = 0
    looked_ns: int = 0
    """When the arbiter last looked at the region."""
    _launched_ns: int = 0
    _latest_ns: int = 0

    def to_host(self, now_ns: int, seen: Compute) -> Compute:
        """Return what the region shows, in times of the host."""
        if seen.launched_ns != self._launched_ns:
            self._launched_ns = seen.launched_ns
            self._learn(seen.launched_ns - now_ns, now_ns - self.looked_ns + _LATE_NS)
        self.looked_ns = now_ns
        return moved(seen, -self.ahead_ns)

    def to_container(self, lease: Lease) -> Lease:
        return moved(lease, self.ahead_ns)

    def _learn(self, ahead_ns: int, most_ns: int) -> None:
        """Take the offset that two launches in a row show. The latest launch was at most `most_ns`
        ago, so the offset is larger by up to this time."""
        agrees = abs(ahead_ns - self._latest_ns) < most_ns
        self._latest_ns = ahead_ns
        if self.ahead_ns and abs(ahead_ns - self.ahead_ns) < most_ns:
            self.ahead_ns = max(self.ahead_ns, ahead_ns)
        elif -most_ns < ahead_ns < _LATE_NS:
            self.ahead_ns = 0
        elif agrees and abs(ahead_ns) < _AHEAD_MAX_NS:
            self.ahead_ns = ahead_ns


def moved(record: _Record, by_ns: int) -> _Record:
    """Return the record with its times that are set later by `by_ns`."""
    if not by_ns:
        return record
    times = {name: getattr(record, name) for name in _TIMES[type(record)]}
    return record._replace(
        **{name: max(at_ns + by_ns, 1) for name, at_ns in times.items() if at_ns}
    )
