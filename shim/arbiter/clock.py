"""The clock of a container, which may be in a time namespace.

Regions and leases hold times of the container's CLOCK_MONOTONIC. Its offset follows from new
launches, which seem to be in the future or long ago. Time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

from gpuslice.contract.lease_file import Lease
from gpuslice.contract.region_file import Compute

_OTHER_NS: Final = 5_000_000_000
"""An arbiter that was stopped sees launches that are less old: its parent kills it earlier."""
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
    _launched_ns: int = 0
    _latest_ns: int = 0

    def to_host(self, now_ns: int, seen: Compute) -> Compute:
        """Return what the region shows, in times of the host."""
        if seen.launched_ns != self._launched_ns:
            if self._launched_ns:
                self._learn(seen.launched_ns - now_ns)
            self._launched_ns = seen.launched_ns
        return moved(seen, -self.ahead_ns)

    def to_container(self, lease: Lease) -> Lease:
        return moved(lease, self.ahead_ns)

    def _learn(self, ahead_ns: int) -> None:
        """Take the offset that two launches in a row show."""
        agrees, self._latest_ns = _near(ahead_ns, self._latest_ns), ahead_ns
        if _near(ahead_ns, 0):
            self.ahead_ns = 0
        elif agrees and abs(ahead_ns) < _AHEAD_MAX_NS:
            # The launch was some time ago, so the largest difference is the most exact one.
            near = _near(ahead_ns, self.ahead_ns)
            self.ahead_ns = max(self.ahead_ns, ahead_ns) if near else ahead_ns


def _near(one_ns: int, other_ns: int) -> bool:
    return abs(one_ns - other_ns) < _OTHER_NS


def moved(record: _Record, by_ns: int) -> _Record:
    """Return the record with its times that are set later by `by_ns`."""
    if not by_ns:
        return record
    times = {name: getattr(record, name) for name in _TIMES[type(record)]}
    return record._replace(
        **{name: max(at_ns + by_ns, 1) for name, at_ns in times.items() if at_ns}
    )
