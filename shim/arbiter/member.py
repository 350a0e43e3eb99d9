"""A container on one GPU as the arbiter sees it: its share, its work, and its utilization.

The utilization is the GPU time of the container's work, divided by the time in which the container
is active, while it has the GPU for itself. A program that fills the GPU has about 1. A program that
launches slower than the GPU works has less. It is measured in windows in which no other container
submits work. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuslice.contract.grant_file import Policy, is_cap
from gpuslice.contract.lease_file import ALONE_US, CYCLE_NS, WHOLE_PPM
from gpuslice.contract.region_file import Compute

MS: Final = 1_000_000
IDLE_NS: Final = 10 * MS
"""A container is active until this time after its work ends. Then it gives up its turn."""
_ATTEMPTS_NS: Final = 25 * MS
"""A launch that waits is tried at least once in this time."""
_INACTIVE_AFTER_NS: Final = CYCLE_NS
"""A container that has not tried to launch for this long has no work."""
_PREDICTED_MAX_NS: Final = 1_000 * MS
_OVERDUE_NS: Final = 300_000
_WAITED_NS: Final = 2_400_000
"""If a program waits for work that is overdue, the work is assumed to take this much longer."""
_SPENT_MAX_NS: Final = 2**62
"""More GPU time than any. A lease has 64 bits for it and what a lane may use."""
_OTHERS_MIN_PPM: Final = 50_000

_INTERMITTENT: Final = 0.9
"""A container whose utilization is below this in two samples is intermittent."""
_SATURATES: Final = 0.96
"""An intermittent container whose utilization reaches this saturates the GPU."""
_FULL_MAX: Final = 1.06
"""Up to this, it fills the GPU: long kernels at a sample's ends make it seem more than 1."""
_SAMPLE_MIN_NS: Final = 18 * MS
"""Shorter ones are added up."""
_WEIGHT: Final = 0.4
"""Of the latest sample in the utilization."""
_AGREES: Final = 0.08
_MEASURE_EVERY_NS: Final = 4_000 * MS
_MEASURE_SOON_NS: Final = 250 * MS
"""If two samples differ, the next one is taken sooner. The interval doubles while they differ."""
_MEASURE_DIFFERING_NS: Final = 1_000 * MS
"""The longest such interval."""
_VERIFY_NS: Final = 800 * MS
"""A new class is verified after this: many programs begin slowly."""
LONG_NS: Final = 6 * MS
"""A sample says nothing if it ends with more work in flight, or so long after its turn."""


@dataclass(frozen=True, slots=True)
class Share:
    """A container's share of the GPU's time. A core_percent of 0 or 100 means none.
    lanes: whether the container's library knows lanes."""

    core_percent: int
    policy: Policy = Policy.FAIR
    lanes: bool = True

    @property
    def has_percent(self) -> bool:
        return is_cap(self.core_percent)

    @property
    def capped(self) -> bool:
        return self.policy is Policy.CAPPED and self.has_percent

    @property
    def laned(self) -> bool:
        """Whether the container gets a lane if it is intermittent."""
        return self.lanes and self.policy is not Policy.TURNS

    @property
    def background(self) -> bool:
        return self.policy is Policy.BACKGROUND and self.lanes


@dataclass(slots=True)
class Utilization:
    """The utilization, from samples. gpu_ns and active_ns are totals, whose differences count."""

    value: float | None = None
    intermittent: bool = False
    again_ns: int = 0
    """When to measure again."""
    doubted_ns: int = 0
    """When to measure again if the container lags much."""
    not_before_ns: int = 0
    """The earliest time of the next measurement, after a void one."""
    _latest: float = 0
    """The latest sample."""
    _pause_ns: int = _MEASURE_SOON_NS
    """The time until the next sample if this one differs."""
    _below: bool = False
    _mark: tuple[int, int] | None = None
    _gpu_ns: int = 0
    _active_ns: int = 0

    @property
    def unsure(self) -> bool:
        """Whether one more sample decides if the container is intermittent."""
        return self.value is None or (self._below and not self.intermittent)

    @property
    def begun(self) -> bool:
        return self._mark is not None

    def sampled_ns(self, active_ns: int) -> int:
        """Return the active time since `begin`."""
        return active_ns - self._mark[1] if self._mark else 0

    def cancel(self, not_before_ns: int = 0) -> None:
        self._mark = None
        self.not_before_ns = not_before_ns

    def begin(self, gpu_ns: int, active_ns: int) -> None:
        """Begin a sample, with the totals so far."""
        self._mark = gpu_ns, active_ns

    def end(self, now_ns: int, gpu_ns: int, active_ns: int) -> bool:
        """Take a sample of the work since `begin`. Return whether the class changed."""
        assert self._mark is not None
        self._gpu_ns += gpu_ns - self._mark[0]
        self._active_ns += active_ns - self._mark[1]
        self._mark = None
        if self._active_ns < _SAMPLE_MIN_NS:
            return False
        self.doubted_ns = now_ns + _MEASURE_DIFFERING_NS
        sample = min(max(self._gpu_ns / self._active_ns, 0.001), 1.5)
        self._gpu_ns = self._active_ns = 0
        before, latest, self._latest = self.value or sample, self._latest, sample
        stays, moved = _agree(sample, self.value or 0), _agree(sample, latest)
        # Two samples that agree replace an older value: the program has begun another phase.
        jumps = moved and not stays
        self.value = (latest + sample) / 2 if jumps else before + _WEIGHT * (sample - before)
        self.again_ns = now_ns + (_MEASURE_EVERY_NS if stays or moved else self._pause_ns)
        longer_ns = min(2 * self._pause_ns, _MEASURE_DIFFERING_NS)
        self._pause_ns = _MEASURE_SOON_NS if stays or moved else longer_ns
        was, was_below = self.intermittent, self._below
        self._below = sample < _INTERMITTENT
        below = self.value < (_SATURATES if was else _INTERMITTENT)
        self.intermittent = below and (was or (was_below and self._below))
        changed = self.intermittent is not was
        if changed:
            self.again_ns = now_ns + _VERIFY_NS
        return changed

    def skip(self, now_ns: int) -> None:
        """Take no sample, because the launches are too long. Such a container saturates the GPU,
        unless it has been measured."""
        self._mark = None
        self.value = self.value or 1
        self._below = False
        self.again_ns = self.doubted_ns = now_ns + _MEASURE_EVERY_NS


@dataclass(slots=True, eq=False)
class Member:
    """A container that shares the GPU. key: identifies it. Times are in nanoseconds."""

    key: str
    share: Share
    capped: bool = False
    """The share's, copied because each step asks several times."""
    part_ppm: int = 0
    """The container's part of a cycle while all containers have work, in millionths."""
    offset_ppm: int = 0
    seen: Compute = field(default_factory=Compute)
    active_ns: int = 0
    """Total time in which the container was active."""
    spent_step_ns: int = 0
    """GPU time of the work that was submitted since the step before."""
    active_step_ns: int = 0
    worked_ns: int = 0
    """When the container last had work."""
    idle_after_ns: int = -1
    """The latest launch before the container gave up a turn. It has no work until a later one."""
    utilization: Utilization = field(default_factory=Utilization)
    has_lane: bool = False
    """Whether the container submits work at any time, and not only in turns."""
    suspect: bool = False
    """Whether the container has a turn, and left the GPU idle in the latest one."""
    doubted: bool = False
    """Whether it left the GPU idle for much of that turn."""
    paused: bool = False
    """Whether it gave up that turn."""
    credit_ns: int = 0
    """Time that a container without a lane may use in its next turns."""
    paid_until_ns: int = 0
    """The time up to which credit has been added. Only used for a capped share."""
    charged_until_ns: int = 0
    """The end of the container's latest turn. 0: there was none."""
    charged_done_ns: int = 0
    """The container's `done_ns` then."""
    lag_ns: float = 0
    """By how much a container with a lane is behind its share, in the time that it takes alone."""
    beside_ns: int = 0
    """Active time in the lane beside turns of others, in the present sample."""
    beside_done_ns: float = 0
    """Progress in that time."""
    slow_since_ns: int = 0
    """Since when the lane is closed beside turns of others, which delay its launches. 0: it is
    open."""
    crowd_until_ns: int = 0
    """Until when the container takes turns, because lanes delay it and the others too much."""
    disturbed_ns: float = 0
    """By how much background work has delayed the container, less what is tolerable."""
    window: tuple[int, int, int] = (0, 0, ALONE_US)
    """Begin and end of the window, and the most work in flight in microseconds."""
    lane: tuple[int, int, int] = (0, 0, 0)
    """The lane's base, begin and rate (gpuslice/contract/lease_file.py). Zeros: no lane."""
    written: tuple[object, ...] = ()
    """The content of the lease that was written last."""
    written_ns: int = 0
    _ahead_ns: int = 0
    """The predicted time until the submitted work is done, as of the latest step."""

    @property
    def window_ns(self) -> int:
        """Return the length of the container's part of a cycle."""
        return CYCLE_NS * self.part_ppm // WHOLE_PPM

    @property
    def contended(self) -> bool:
        return self.window[2] < ALONE_US

    @property
    def done_ns(self) -> int:
        """GPU time of the work that is done, as of the latest step."""
        return self.seen.spent_ns - self._ahead_ns

    def alone_ns(self, spent_ns: int) -> float:
        """Return the time that the container alone takes for this GPU time."""
        value = self.utilization.value or 1
        least = _SATURATES if self.utilization.intermittent else _INTERMITTENT
        return spent_ns / (1 if least <= value <= _FULL_MAX else value)

    def observe(self, now_ns: int, elapsed_ns: int, seen: Compute) -> None:
        """Note what the container's region shows. elapsed_ns: time since the step before."""
        self.spent_step_ns = max(seen.spent_ns - self.seen.spent_ns, 0)
        self.seen = seen = plausible(seen, now_ns)
        share = self.share
        crowded = now_ns < self.crowd_until_ns
        lane = share.laned and self.utilization.intermittent and not crowded
        self.has_lane = share.background or lane
        self._ahead_ns = max(seen.busy_until_ns - now_ns, 0)
        attempts_ns = IDLE_NS if self.lane[1] or not self.has_lane else _ATTEMPTS_NS
        active = now_ns < max(seen.launched_ns + attempts_ns, seen.busy_until_ns + IDLE_NS)
        self.active_step_ns = elapsed_ns if active else 0
        self.active_ns += self.active_step_ns

    def has_work(self, now_ns: int) -> bool:
        seen = self.seen
        return (
            seen.launched_ns > self.idle_after_ns
            and max(seen.launched_ns, seen.busy_until_ns) > now_ns - _INACTIVE_AFTER_NS
        )

    def begin_sample(self) -> None:
        if self._ahead_ns <= LONG_NS:
            self.utilization.begin(self.done_ns, self.active_ns)

    def paused_ns(self, now_ns: int) -> int:
        """Return for how long the container has had no work, at most IDLE_NS."""
        return min(max(now_ns - max(self.seen.launched_ns, self.seen.busy_until_ns), 0), IDLE_NS)

    def end_sample(self, now_ns: int, paused_ns: int = 0) -> None:
        usage = self.utilization
        if not usage.begun:
            return
        if self._ahead_ns > LONG_NS:
            usage.skip(now_ns)
        elif usage.end(now_ns, self.done_ns, self.active_ns - paused_ns):
            self.credit_ns = min(self.credit_ns, 0)
            self.lag_ns, self.slow_since_ns = 0, 0


def _agree(sample: float, value: float) -> bool:
    return abs(sample - value) < _AGREES * value


def plausible(seen: Compute, now_ns: int) -> Compute:
    """Correct the predicted end of a container's work. A killed process leaves its prediction in
    the region, so predictions are limited; a running process soon writes a new one. If a program
    still waits for work after its predicted end, the work is assumed to continue. A program may
    have overwritten the region with any number."""
    busy_until_ns = min(seen.busy_until_ns, seen.launched_ns + _PREDICTED_MAX_NS)
    since_ns = seen.waiting_since_ns
    overdue = max(busy_until_ns, since_ns) + _OVERDUE_NS < now_ns
    if overdue and now_ns - _PREDICTED_MAX_NS < since_ns:
        busy_until_ns = now_ns + _WAITED_NS
    if busy_until_ns == seen.busy_until_ns and seen.spent_ns < _SPENT_MAX_NS:
        return seen
    return seen._replace(busy_until_ns=busy_until_ns, spent_ns=min(seen.spent_ns, _SPENT_MAX_NS))


def parts_ppm(shares: Mapping[str, Share]) -> Mapping[str, int]:
    """Divide a cycle among containers, in millionths. A container with a percentage gets it.
    The others get equal parts of the rest, at least 5 percent each. If the sum exceeds a cycle, all
    parts are scaled down. Containers in the background divide what is left."""
    behind = [key for key, share in shares.items() if share.background]
    sharing = {key: share for key, share in shares.items() if not share.background}
    without = sum(not share.has_percent for share in sharing.values())
    rest = WHOLE_PPM - sum(
        each.core_percent * 10_000 for each in sharing.values() if each.has_percent
    )
    each_ppm = max(rest // without, _OTHERS_MIN_PPM) if without else 0
    parts = {
        key: share.core_percent * 10_000 if share.has_percent else each_ppm
        for key, share in sharing.items()
    }
    total = sum(parts.values())
    if total > WHOLE_PPM:
        parts = {key: part * WHOLE_PPM // total for key, part in parts.items()}
    left_ppm = WHOLE_PPM - sum(parts.values())
    return parts | dict.fromkeys(behind, left_ppm // max(len(behind), 1))
