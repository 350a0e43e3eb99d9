"""Permits this process to bind while kube-scheduler's Lease names its pod.

The Lease's holder is HOSTNAME_UUID; the host name is the pod's. The watch of Leases reports the
Lease, and this module writes nothing. Invariant: when a term's first write starts, the writes of
earlier holders have ended, and all objects were listed after that. See docs/adr/0018.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from gpuslice.contract import names
from gpuslice.kube.log_lines import Line
from scheduler.kubernetes.facts import SchedulerLease

_LOG: Final = logging.getLogger(__name__)

POST_S: Final = 4.0
"""Timeout of a Binding's POST at the client and, as its query `timeout`, at the server."""
ANSWERED_S: Final = POST_S + 1.0
"""The API server refuses new Bindings of a former holder, and ends earlier ones within POST_S. So
nothing of it arrives later than this after the next holder acquired the Lease."""
MIN_LEASE_S: Final = 15.0
"""A shorter Lease counts as one of this duration."""
_MARGIN_S: Final = 0.5
"""Clocks of two hosts may run at rates that differ by 3 percent."""
TIMEOUT_S: Final = 2.5
"""How long a verb waits for the start of a term, while kube-scheduler waits for the verb."""
_CALLS_S: Final = 15.0
"""kube-scheduler retries a refused pod after at most 10 s."""
_FAILOVER_S: Final = 20.0


def boot_clock() -> float:
    """Seconds of a clock that includes suspend and cannot be set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseGuard(Protocol):
    """The right to bind. Only one process has it at a time, for a limited time. Nothing may be
    awaited between `may_write` and the POST, whose timeout is POST_S."""

    def record_call(self) -> bool:
        """Records a verb. True if this process may write now; else call `admit`."""

    async def admit(self) -> str:
        """Records a verb, and waits briefly if this process is about to get the right. "": it may
        write; else the verb's error."""

    def may_write(self) -> bool:
        """Whether a POST may be sent now."""

    def refusal(self) -> str:
        """Why this process may not write, and which one may; "" if it may."""

    @property
    def writer(self) -> str:
        """Value of each Binding's annotation contract.names.ANNOTATION_WRITER: the holder of the
        Lease. The API server refuses Bindings whose writer no longer holds it."""


class Leadership:
    """A LeaseGuard. `run` must run. hostname: of this pod. wall: seconds since the epoch,
    by the clock that kube-scheduler's times are of."""

    def __init__(
        self,
        hostname: str,
        clock: Callable[[], float] = boot_clock,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.leaving = False
        """Set once: no write starts any more."""
        self._prefix = f"{hostname}_"
        self._clock, self._wall = clock, wall
        self._started_s = clock()
        self._lease = SchedulerLease()
        self._valid_until_s = -math.inf
        self._others_end_s = -math.inf
        """When the writes of the last other holder end, by its renewals alone."""
        self._ready_s = math.inf
        """When the list of the coming term may start; inf: no term is coming."""
        self.writer = ""
        """The holder for whose term all objects were listed; "" for none."""
        self._changed, self._open = asyncio.Event(), asyncio.Event()
        self._called_s = self._refused_since_s = -math.inf

    def observe(self, lease: SchedulerLease | None) -> None:
        """The watch reports kube-scheduler's Lease; None: it does not exist."""
        now_s, wall_s, was = self._clock(), self._wall(), self._lease.holder
        self._lease, self._valid_until_s = lease or SchedulerLease(), -math.inf
        if self._lease.holder != was:
            self._end_term()
        span_s = max(self._lease.duration_s, MIN_LEASE_S)
        if self._is_ours:
            # What is delivered late is old: the times are of this host's clock.
            renewed_s = now_s - max(0.0, wall_s - self._lease.renewed_s)
            self._valid_until_s = renewed_s + span_s - 2 * POST_S - _MARGIN_S
            if not self.writer and self._ready_s == math.inf:
                acquired_s = now_s - max(0.0, wall_s - self._lease.acquired_s)
                self._ready_s = max(
                    self._others_end_s,
                    acquired_s + ANSWERED_S,
                    # An earlier process of this pod may have sent a POST just before its end.
                    self._started_s + ANSWERED_S,
                )
                self._changed.set()
        elif self._lease.holder:
            self._others_end_s = now_s + span_s
        elif lease is not None:  # released
            self._others_end_s = -math.inf

    async def run(self, relist: Callable[[], Awaitable[None]]) -> None:
        """Lists all objects at the start of each term of this pod. Runs until cancelled. relist:
        lists them again."""
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

    # --- LeaseGuard

    def record_call(self) -> bool:
        now_s, may_write = self._clock(), self.may_write()
        if not self._is_others(now_s) or now_s - self._called_s > _CALLS_S:
            self._refused_since_s = now_s
        self._called_s = now_s
        return may_write

    async def admit(self) -> str:
        if not self.record_call() and not self._is_others(self._clock()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TIMEOUT_S):
                    await self._open.wait()
        return self.refusal()

    def may_write(self) -> bool:
        return bool(self.writer) and self._clock() < self._valid_until_s and not self.leaving

    def refusal(self) -> str:
        return "" if self.may_write() else f"gpuslice does not bind here: {self.status}"

    # --- reporting

    @property
    def second_installation(self) -> bool:
        """Whether kube-scheduler calls this process, for longer than a failover takes, while a
        kube-scheduler of another pod renews the Lease."""
        now_s = self._clock()
        called_for_s = self._called_s - self._refused_since_s
        is_called = now_s - self._called_s <= _CALLS_S
        return is_called and called_for_s >= _FAILOVER_S and self._is_others(now_s)

    @property
    def status(self) -> str:
        """The state of the election, and this process's part in it, as one line."""
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
        """Whether a kube-scheduler of another pod renews the Lease."""
        is_held = bool(self._lease.holder) and not self._is_ours
        return is_held and now_s < self._others_end_s

    def _end_term(self) -> None:
        if self.writer:
            _LOG.info(Line("leadership ended", was=self.writer, holder=self._lease.holder))
        self.writer, self._ready_s = "", math.inf
        self._open.clear()
        self._changed.set()
