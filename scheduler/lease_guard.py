"""The right to bind, for the extender and the binder; `scheduler.leadership` implements it."""

from __future__ import annotations

from typing import Protocol


class LeaseGuard(Protocol):
    """Only one process has the right at a time, for a limited time. Nothing may be awaited between
    `may_write` and the POST, whose timeout is leadership.POST_S."""

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
