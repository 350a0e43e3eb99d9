"""A Leadership that the test begins and ends."""

from __future__ import annotations

import asyncio

from scheduler.leadership import Leadership


class ManualLeaseGuard(Leadership):
    """The guard closes after `open_for` checks, if this is not None. If `resumed` is not None,
    `admit` waits for this event."""

    is_open = True
    open_for: int | None = None
    resumed: asyncio.Event | None = None
    admitted = checked = 0

    def __init__(self) -> None:
        super().__init__("pod-1")
        self.writer = "pod-1_3"

    def record_call(self) -> bool:
        self.admitted += self.is_open
        return self.is_open

    async def admit(self) -> str:
        self.record_call()
        if self.resumed is not None:
            await self.resumed.wait()
        return self.refusal()

    def may_write(self) -> bool:
        self.checked += 1
        if self.open_for is not None:
            self.is_open = self.open_for > 0
            self.open_for -= 1
        return self.is_open

    def refusal(self) -> str:
        return "" if self.is_open else "another replica holds the Lease: pod-7"
