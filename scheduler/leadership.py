"""Permits this process to bind while kube-scheduler's Lease names its pod.

The Lease's holder is HOSTNAME_UUID, with the host name of its pod. A watch reports the Lease. This
module writes nothing. Invariant: before the first write of a term, all writes of earlier holders
have ended, and after their end all objects were listed. See docs/adr/0018.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Final

from gpuslice.contract import names
from gpuslice.kube.log_lines import Line
from scheduler.kubernetes.facts import SchedulerLease

_LOG: Final = logging.getLogger(__name__)

POST_S: Final = 4.0
"""The timeout of a Binding's POST, at the client and, by the query `timeout`, at the API server."""
ANSWERED_S: Final = POST_S + 1.0
"""After this time of a term, no Binding of an earlier holder is applied any more: the API server
refuses new ones once the Lease has changed, and ends those in progress within POST_S."""
MIN_LEASE_S: Final = 15.0
"""A Lease of a shorter duration counts as one of this duration."""
_MARGIN_S: Final = 0.5
"""A margin for clocks of two hosts, whose rates may differ by 3 percent."""
TIMEOUT_S: Final = 2.5
"""How long a verb waits for the start of a term. kube-scheduler waits for the verb meanwhile."""
_CALLS_S: Final = 65.0
"""A longer pause ends a series of calls, because kube-scheduler retries within 60 s."""
_FAILOVER_S: Final = 20.0


def boot_clock() -> float:
    """Return seconds of a clock that cannot be set and also runs while the host is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Leadership:
    """The right to bind, which one process has at a time. It ends unless it is renewed. The caller
    must not await anything between `may_write` and the POST, whose timeout is POST_S.

    `run` must be running. hostname: of this pod. wall: seconds since the epoch, by the same clock
    as the times in kube-scheduler's Lease."""

    def __init__(
        self,
        hostname: str,
        clock: Callable[[], float] = boot_clock,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.leaving = False
        """Set at shutdown, after which no write starts."""
        self._prefix = f"{hostname}_"
        self._clock, self._wall = clock, wall
        self._started_s = clock()
        self._lease = SchedulerLease()
        self._valid_until_s = -math.inf
        self._others_end_s = -math.inf
        """The time at which the last other holder's writes end, computed from its renewals."""
        self._ready_s = math.inf
        """The time at which a new term of this pod may list the objects; inf without a term."""
        self.writer = ""
        """The holder during a term of this pod, once all objects were listed; else "". It is the
        ANNOTATION_WRITER of each Binding, which the API server refuses after the term."""
        self._changed, self._open = asyncio.Event(), asyncio.Event()
        self._called_s = self._refused_since_s = -math.inf

    def observe(self, lease: SchedulerLease | None) -> None:
        """Record kube-scheduler's Lease from the watch; None if it does not exist."""
        now_s, wall_s, was = self._clock(), self._wall(), self._lease.holder
        self._lease, self._valid_until_s = lease or SchedulerLease(), -math.inf
        if self._lease.holder != was:
            self._end_term()
        span_s = max(self._lease.duration_s, MIN_LEASE_S)
        if self._is_ours:
            # The watch may be late, so use the Lease's own times, which are of this host's clock.
            renewed_s = now_s - max(0.0, wall_s - self._lease.renewed_s)
            self._valid_until_s = renewed_s + span_s - 2 * POST_S - _MARGIN_S
            if not self.writer and self._ready_s == math.inf:
                acquired_s = now_s - max(0.0, wall_s - self._lease.acquired_s)
                self._ready_s = max(
                    self._others_end_s,
                    acquired_s + ANSWERED_S,
                    # An earlier process of this pod may have sent a POST just before it ended.
                    self._started_s + ANSWERED_S,
                )
                self._changed.set()
        elif self._lease.holder:
            self._others_end_s = now_s + span_s
        elif lease is not None:  # the holder released the Lease
            self._others_end_s = -math.inf

    async def run(self, relist: Callable[[], Awaitable[None]]) -> None:
        """Call `relist` at the start of each term of this pod, until cancelled."""
        while True:
            wait_s = self._ready_s - self._clock()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if wait_s == math.inf else wait_s):
                    await self._changed.wait()
            self._changed.clear()
            if self._clock() < (ready_s := self._ready_s):
                continue
            await relist()
            if self._ready_s == ready_s:
                self.writer, self._ready_s = self._lease.holder, math.inf
                self._open.set()
                _LOG.info(Line("leadership began", holder=self.writer))

    # --- the right to bind

    def record_call(self) -> bool:
        """Record a verb. Return True if this process may write now; otherwise call `admit`."""
        now_s, may_write = self._clock(), self.may_write()
        if not self._is_others(now_s) or now_s - self._called_s > _CALLS_S:
            self._refused_since_s = now_s
        self._called_s = now_s
        return may_write

    async def admit(self) -> str:
        """Record a verb, and wait briefly if this process is about to get the right. Return "" if
        this process may write, else the error for the verb."""
        if not self.record_call() and not self._is_others(self._clock()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TIMEOUT_S):
                    await self._open.wait()
        return self.refusal()

    def may_write(self) -> bool:
        """Return whether a POST may be sent now."""
        return bool(self.writer) and self._clock() < self._valid_until_s and not self.leaving

    def refusal(self) -> str:
        """Return why this process may not write and which process may, or "" if this one may."""
        return "" if self.may_write() else f"gpuslice does not bind here: {self.status}"

    # --- reporting

    @property
    def second_installation(self) -> bool:
        """Whether kube-scheduler has called this process for longer than a failover takes, while a
        kube-scheduler of another pod renews the Lease."""
        now_s = self._clock()
        called_for_s = self._called_s - self._refused_since_s
        is_called = now_s - self._called_s <= _CALLS_S
        return is_called and called_for_s >= _FAILOVER_S and self._is_others(now_s)

    @property
    def status(self) -> str:
        """One line on which process holds the Lease, and whether this process may bind."""
        lease = f"the Lease {names.NAMESPACE}/{names.LEASE_KUBE_SCHEDULER}"
        holder = self._lease.holder
        if self.leaving:
            return "this process is shutting down"
        if self.may_write():
            return f"this process binds: {holder} of this pod holds {lease}"
        if self._is_ours and self._clock() >= self._valid_until_s:
            return f"{holder} of this pod has not renewed {lease} in time"
        if self._is_ours:
            return f"{holder} of this pod holds {lease}; all objects are listed before it binds"
        return f"on standby; {holder or 'no kube-scheduler'} holds {lease}"

    @property
    def _is_ours(self) -> bool:
        return self._lease.holder.startswith(self._prefix)

    def _is_others(self, now_s: float) -> bool:
        """Return whether a kube-scheduler of another pod renews the Lease."""
        is_held = bool(self._lease.holder) and not self._is_ours
        return is_held and now_s < self._others_end_s

    def _end_term(self) -> None:
        if self.writer:
            _LOG.info(Line("leadership ended", was=self.writer, holder=self._lease.holder))
        self.writer, self._ready_s = "", math.inf
        self._open.clear()
        self._changed.set()
