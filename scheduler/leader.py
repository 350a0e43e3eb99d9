"""Holds the Lease that permits this process to bind. `election` makes the decisions.

Inputs: the API server (the Lease is read, renewed and campaigned for) and the extender, which calls
`admit`: a call shows that this process's kube-scheduler leads, so this process should hold the
Lease. The binder checks `may_write` right before each POST. One task; it runs until `leave` or
cancellation.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Final, Protocol

from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from gpuslice.kube.log_lines import Line
from scheduler.leadership import lease
from scheduler.leadership.election import POST_S, Candidate, Do, Election, Role, Timing
from scheduler.leadership.lease import Record
from scheduler.metrics import Metrics

_LOG: Final = logging.getLogger(__name__)

LEASE_CALL_S: Final = 2.0
"""Within a window two renewals can fail."""
TIMEOUT_S: Final = 2.5
"""How long a verb waits for the Lease, while kube-scheduler waits for the verb."""
_RETRY_S: Final = 0.5


class LeaseGuard(Protocol):
    """The right to bind, as used by extender and binder. Only one process has it at a time, for a
    limited time. All calls run on the event loop's thread. Nothing may be awaited between
    `may_write` and the POST, whose timeout is POST_S."""

    def record_call(self) -> bool:
        """Records a verb: this process's kube-scheduler leads, so this process should write. True
        if it may write now; else call `admit`."""

    async def admit(self) -> str:
        """Record a call as `record_call` does, and wait briefly if the right is about to be
        acquired. "": this process may write; else the verb's error."""

    def may_write(self) -> bool:
        """Whether a POST may be sent now. Call within `writing`, right before the POST."""

    def refusal(self) -> str:
        """Why this process may not write, and which one may; "" if it may."""

    @property
    def writer(self) -> str:
        """Value of each Binding's annotation ANNOTATION_WRITER, the fencing token.
        The API server refuses Bindings whose writer no longer holds the Lease."""

    def writing(self) -> contextlib.AbstractContextManager[None]:
        """Encloses a POST until its outcome is known. The Lease is released after it."""


def boot_clock() -> float:
    """Seconds of a clock that includes suspend and cannot be set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Leader:
    """Implements LeaseGuard. `run` runs until `leave`; if cancelled instead, it does not release
    the Lease, and the other processes wait until it expires.

    relist: lists all objects again; awaited before the first write of each term.
    """

    def __init__(
        self,
        kube: Kube,
        me: Candidate,
        relist: Callable[[], Awaitable[None]],
        metrics: Metrics,
        clock: Callable[[], float] = boot_clock,
        timing: Timing | None = None,
    ) -> None:
        self._kube = kube
        self._relist = relist
        self._metrics = metrics
        self._clock = clock
        self._election = Election(me, timing)
        self._under_way = 0
        self._unknown_until_s = float("-inf")
        self._wake = asyncio.Event()
        self._open = asyncio.Event()
        self._listing: asyncio.Task[None] | None = None
        self._role = Role.STANDBY
        self._lease_error = ""
        self._second_installation = ""

    # --- LeaseGuard

    def record_call(self) -> bool:
        now_s = self._clock()
        was_candidate = self._election.is_candidate(now_s)
        self._election.record_call(now_s)
        may_write = self._election.may_write(now_s)
        if not (may_write or was_candidate):
            self._wake.set()
        return may_write

    async def admit(self) -> str:
        if self.record_call():
            return ""
        if self._election.is_held_by_other_installation(self._clock()):
            return self.refusal()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                await self._open.wait()
        return "" if self.may_write() else self.refusal()

    def may_write(self) -> bool:
        return self._election.may_write(self._clock())

    def refusal(self) -> str:
        return "" if self.may_write() else f"gpuslice does not bind here: {self.status}"

    @property
    def writer(self) -> str:
        record = self._election.record
        return "" if record is None else record.writer

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        self._under_way += 1
        try:
            yield
        except BaseException:
            # The request may still be pending at the server, which times out as late.
            self._unknown_until_s = self._clock() + POST_S
            raise
        finally:
            self._under_way -= 1
            if self._role is Role.RELEASING:
                self._wake.set()

    # --- reporting

    @property
    def role(self) -> Role:
        return self._election.role

    @property
    def status(self) -> str:
        """The state of the election, and this process's part in it, as one line."""
        election, now_s = self._election, self._clock()
        record = election.record
        if election.may_write(now_s):
            return f"this process ({election.me.identity}) holds the Lease {lease.NAME}"
        if election.is_renewal_late(now_s):
            why = self._lease_error or "no answer"
            return f"its Lease {lease.NAME} could not be renewed in time: {why}"
        if election.role is Role.ACQUIRING:
            return f"acquired the Lease {lease.NAME}; listing all objects before it binds"
        if election.role is Role.RELEASING:
            return f"releasing the Lease {lease.NAME}"
        if self._lease_error:
            return f"the Lease {lease.NAME} cannot be acquired: {self._lease_error}"
        if record is None or not record.holder:
            return f"on standby; no process holds the Lease {lease.NAME}"
        is_other = record.installation != election.me.installation
        installation = record.installation or "unnamed"
        holder_name = f"another installation, {installation}," if is_other else "another replica"
        return (
            f"on standby; {holder_name} holds the Lease {lease.NAME}: {record.holder},"
            f" which changed it {election.unchanged_s(now_s):.0f} s ago"
        )

    @property
    def second_installation(self) -> str:
        """The other installation that binds while this process receives calls; "" for none."""
        election, now_s = self._election, self._clock()
        record = election.record
        if record is None or not (
            election.is_candidate(now_s) and election.is_held_by_other_installation(now_s)
        ):
            return ""
        return record.installation or "unnamed"

    # --- the loop

    async def run(self) -> None:
        """Runs until `leave`, the end of pending writes and the return of the Lease."""
        election = self._election
        try:
            while True:
                pause_s = await self._step()
                self._settle()
                if election.leaving and election.role is not Role.RELEASING:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._wake.wait()
                self._wake.clear()
        finally:
            await self._list_no_more()

    def leave(self) -> None:
        """Starts no new write; `run` returns when pending writes have ended."""
        self._election.leaving = True
        self._settle()
        self._wake.set()

    async def _step(self) -> float:
        """Performs the next step. Returns the seconds until the one after it."""
        election = self._election
        self._settle()
        sent_s = self._clock()
        do = election.step(sent_s, self._under_way > 0 or sent_s < self._unknown_until_s)
        try:
            await self._do(do, sent_s)
        except KubeError as error:
            if error.status in (404, 409) and do is not Do.READ:
                return await self._read_again(do, error)
            self._fail(do, error)
            return _RETRY_S
        self._lease_error = ""
        now_s = self._clock()
        unknown_s = self._unknown_until_s - now_s
        pause_s = election.pause_s(now_s)
        return min(pause_s, unknown_s) if unknown_s > 0 else pause_s

    async def _read_again(self, do: Do, error: KubeError) -> float:
        """Read the Lease again after a conflict, or where it is missing."""
        try:
            await self._do(Do.READ, self._clock())
        except KubeError as again:
            self._fail(Do.READ, again)
            return _RETRY_S
        if error.status == 404 and do is Do.ACQUIRE:
            self._fail(do, error)
            return _RETRY_S
        return 0.0

    async def _do(self, do: Do, sent_s: float) -> None:
        election = self._election
        if do is Do.READ:
            record = await self._read()
            election.observed(record, self._clock())
            return
        if do is Do.CAMPAIGN:
            body = lease.candidate_patch(election.campaign())
            answer = await self._kube.patch(lease.PATH, body, timeout_s=LEASE_CALL_S)
            election.observed(lease.read(answer), self._clock())
            election.campaigned(self._clock())
            return
        at = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        record = election.record_for(do, at)
        body = lease.written(record)
        if record.raw is None:
            answer = await self._kube.post(lease.COLLECTION, body, timeout_s=LEASE_CALL_S)
        else:
            answer = await self._kube.put(lease.PATH, body, timeout_s=LEASE_CALL_S)
        election.wrote(do, lease.read(answer), sent_s, self._clock())

    async def _read(self) -> Record | None:
        try:
            return lease.read(await self._kube.get(lease.PATH, timeout_s=LEASE_CALL_S))
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    def _fail(self, do: Do, error: KubeError) -> None:
        self._metrics.lease_failures.labels(do.value).inc()
        if str(error) != self._lease_error:
            _LOG.warning(Line("Lease request failed", request=do.value, error=error))
        self._lease_error = str(error)

    # --- effects of the role

    def _settle(self) -> None:
        """Updates the role, and everything that depends on it."""
        election, now_s = self._election, self._clock()
        election.settle(now_s)
        if election.role is not self._role:
            role, was = election.role.value, self._role.value
            holder = election.record.holder if election.record else ""
            _LOG.info(Line("leader election state changed", role=role, was=was, holder=holder))
            self._metrics.lease_changes.labels(election.role.value).inc()
            self._role = election.role
        self._metrics.lease_held.set(election.holds)
        if election.role is Role.HOLDING:
            self._open.set()
        else:
            self._open.clear()
        found = self.second_installation
        self._metrics.second_installation.set(bool(found))
        if found and found != self._second_installation:
            _LOG.warning(Line("second installation", status=self.status))
        self._second_installation = found
        if election.must_list(now_s) and self._listing is None:
            self._listing = asyncio.create_task(self._list(), name="list for the new term")
        elif election.role is not Role.ACQUIRING and self._listing is not None:
            self._listing.cancel()
            self._listing = None

    async def _list(self) -> None:
        while True:
            try:
                await self._relist()
                break
            except KubeError as error:
                _LOG.warning(Line("relist failed", error=error))
                await asyncio.sleep(_RETRY_S)
        self._election.listed()
        self._settle()

    async def _list_no_more(self) -> None:
        if self._listing is not None:
            self._listing.cancel()
            await asyncio.wait([self._listing])
