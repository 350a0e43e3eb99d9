"""Credit: the GPU time that a container without a lane may use in its next turns.

Each round adds a container's part of a cycle. A capped container gets credit as time passes
instead. A turn costs what the container used of it. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpuslice.contract.lease_file import CYCLE_NS, WHOLE_PPM
from shim.arbiter.member import MS, Member

MIN_WINDOW_NS: Final = 2 * MS
_DEBT_MAX_NS: Final = 10_000 * MS


def charge(
    members: Sequence[Member],
    holder: Member,
    used_ns: int,
    end_ns: int,
    delay_ns: int,
    beside_ns: int,
    measures: bool,
) -> None:
    """Deduct a turn that ends at `end_ns` from the holder's credit. What earlier work of another
    container took of it, `delay_ns` or half of the overlap, is deducted from that one's credit.

    beside_ns: what lanes took of the turn. measures: it measured the utilization, which makes no
    debt.
    """
    for member in members:
        begun_ns = max(holder.window[0], member.charged_until_ns)
        overlap_ns = min(member.seen.busy_until_ns, end_ns) - begun_ns
        took_turn = member is not holder and not member.has_lane and member.charged_until_ns
        if took_turn and overlap_ns > 0:
            others_ns = max(overlap_ns // 2, min(overlap_ns, delay_ns))
            used_ns -= others_ns
            _pay(member, others_ns)
            member.charged_until_ns = end_ns
    used_ns = max(used_ns - beside_ns, used_ns // 5)
    if holder.capped:
        # A cap is one of GPU time. That of processes in time slices is known less exactly, so
        # without lanes it only shortens the turn a little.
        gpu_ns = holder.done_ns - holder.charged_done_ns
        if beside_ns:
            used_ns = max(gpu_ns, used_ns // 5)
        else:
            used_ns = min(max(gpu_ns, used_ns * 97 // 100), used_ns)
    _pay(holder, min(used_ns, max(holder.credit_ns, 0)) if measures else used_ns)
    holder.charged_until_ns, holder.charged_done_ns = end_ns, holder.done_ns


def _pay(member: Member, used_ns: int) -> None:
    member.credit_ns = max(member.credit_ns - used_ns, -_DEBT_MAX_NS)


def add_capped(members: Sequence[Member], now_ns: int) -> None:
    """Add a capped share's credit for the time that has passed, up to two windows."""
    for member in members:
        if not member.capped:
            continue
        passed_ns = now_ns - (member.paid_until_ns or now_ns)
        credit_ns = member.credit_ns + passed_ns * member.part_ppm // WHOLE_PPM
        member.credit_ns = min(credit_ns, 2 * member.window_ns)
        member.paid_until_ns = now_ns


def first_with_credit(members: Sequence[Member]) -> Member | None:
    """Return the first of these containers that has credit for a turn. If none has, add rounds of
    credit until one whose share is not capped has it. Return None if all shares are capped."""
    found = _first(members)
    free = [member for member in members if not member.capped]
    if found or not free:
        return found
    total_ppm, several = sum(member.part_ppm for member in members), len(members) > 1
    parts_ns = [CYCLE_NS * member.part_ppm // total_ppm for member in free]
    rounds = min(
        -((member.credit_ns - _least_ns(member, several)) // part_ns)
        for member, part_ns in zip(free, parts_ns, strict=True)
    )
    for member, part_ns in zip(free, parts_ns, strict=True):
        member.credit_ns += max(rounds, 1) * part_ns
    return _first(members)


def _first(members: Sequence[Member]) -> Member | None:
    several = len(members) > 1
    return next((each for each in members if each.credit_ns >= _least_ns(each, several)), None)


def _least_ns(member: Member, several: bool) -> int:
    """Return the least credit for a turn. several: the container would wait for turns of others
    after it."""
    if member.capped:
        return member.window_ns * 4 // 5
    return max(member.window_ns // 4 * several, min(MIN_WINDOW_NS, member.window_ns))


def suffices(member: Member, used_ns: int) -> bool:
    """Return whether the container has credit for a turn after one that used this time."""
    return member.credit_ns - used_ns >= _least_ns(member, False)


def until_capped_ns(members: Sequence[Member], longest_ns: int) -> int:
    """Return in what time the first of these capped shares has credit for a whole window."""
    waits = [
        (member.window_ns - member.credit_ns) * WHOLE_PPM // member.part_ppm for member in members
    ]
    return min([*waits, longest_ns])
