"""The leases that containers read: when each may launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from gpuslice.contract.lease_file import CYCLE_NS, Lease
from shim.arbiter.member import Member

BEAT_NS: Final = 2 * CYCLE_NS
"""A lease is written again after this time, so that containers see that the arbiter runs."""


def changed(
    members: Iterable[Member], exclusive: Member | None, now_ns: int, ahead_ns: int
) -> Mapping[str, Lease]:
    """Return the leases that have changed, or that are old, by the container's key, and note them
    as written. exclusive: the only container that may launch. ahead_ns: how far in the future the
    leases are dated."""
    leases = {}
    for member in members:
        only = member is exclusive
        content = member.window, member.lane, member.part_ppm, member.offset_ppm, only
        if content != member.written or now_ns >= member.written_ns + BEAT_NS:
            (start_ns, end_ns, in_flight_us), lane, part_ppm, offset_ppm, _ = content
            member.written, member.written_ns = content, now_ns + ahead_ns
            window = member.written_ns, start_ns, end_ns
            leases[member.key] = Lease(*window, *lane, in_flight_us, part_ppm, offset_ppm, only)
    return leases
