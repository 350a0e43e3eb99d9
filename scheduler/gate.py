"""The right to bind, as those see it who bind: held by one process of all, and for a while only.

Interface alone: `scheduler.leader` keeps it, the extender and the binder ask. After the check in
`may_write` nothing may be awaited before the POST; the POST goes by POST_S, at the client and, as
its query `timeout`, at the server: a new holder waits that long before it binds, and lists afresh.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final, Protocol

POST_S: Final = 4.0
"""A POST of a Binding is over by then, one way or the other."""


class Gate(Protocol):
    """All in one thread, that of the event loop."""

    def asked(self) -> bool:
        """A verb has come, so our kube-scheduler leads, and we should write. Whether we may now:
        else `admit` has the answer."""
        ...

    async def admit(self) -> str:
        """As `asked`; waits, for a short while, where the right is on its way. "": we may; else the
        verb's error, for people."""
        ...

    def may_write(self) -> bool:
        """Whether a POST may leave now. Asked within `writing`, right before it."""
        ...

    def refusal(self) -> str:
        """Why not, and who may; "" where we may."""
        ...

    @property
    def writer(self) -> str:
        """What each Binding says in the annotation contract.names.ANNOTATION_WRITER: the API server
        refuses those of a writer that is not the Lease's holder any more."""
        ...

    def writing(self) -> AbstractContextManager[None]:
        """Around a POST, until its outcome is known: who yields waits for those under way."""
        ...
