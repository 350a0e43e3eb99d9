"""Whether this agent can bring containers their share now, and if not, why: in words for people.

Plain state, set by the event loop (observer.py, watch.py, node_status.py, verification.py), read by
the endpoint's threads; each field is replaced whole, never changed in place. Ready means all of:
registered with the runtime and synchronized, GPUs known, one of them usable, and the library
there. A GPU that cannot be used is unhealthy in the Device object, and the node stays ready.

The watchdog ends the process where its event loop has been silent for too long: an agent that hangs
keeps the lock (lock.py), and no other can serve the node. The liveness probe has it killed sooner;
this is for nodes without one.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

BEAT_S: Final = 1.0
"""How often the event loop says that it lives."""
BEAT_LATE_S: Final = 10.0
"""Silent for longer, it is taken to hang."""
_STDERR: Final = 2


class Readiness:
    """now: a monotonic clock in seconds, readable from any thread. alive: told at every beat."""

    def __init__(self, now: Callable[[], float], alive: Callable[[], None] = lambda: None) -> None:
        self._now = now
        self._alive = alive
        self._beat_at = now()
        self.session: str | None = "not connected to the container runtime yet"
        """Why there is no session; None while there is one."""
        self.node: Sequence[str] = ("the node has not been looked at yet",)
        """What this node lacks."""
        self.cluster: str | None = None
        """Why the agent does not write its objects at the API server; None: it does."""
        self.unusable: Mapping[str, str] = {}
        """By UUID, why a GPU cannot be brought to containers, though the driver shows it."""
        self.grants: Sequence[str] = ()
        """What people should know of grants."""

    def beat(self) -> None:
        self._beat_at = self._now()
        self._alive()

    @property
    def hang(self) -> str | None:
        """Why the event loop is taken to hang; None: it lives."""
        silent_s = self._now() - self._beat_at
        if silent_s <= BEAT_LATE_S:
            return None
        return f"the agent's event loop has not run for {silent_s:.0f} s"

    @property
    def problems(self) -> Sequence[str]:
        """Everything that keeps the agent from being ready; empty: it is."""
        found = (self.hang, self.session, *self.node, self.cluster)
        return [problem for problem in found if problem is not None]

    @property
    def notes(self) -> Sequence[str]:
        """What people should know of an agent that is ready all the same."""
        return (*self.unusable.values(), *self.grants)


class Watchdog:
    """From the first `feed` on, until `close`. Says where the loop hangs.

    Python's faulthandler waits in a thread of C, which needs neither the event loop nor the
    interpreter. A process that was stopped (SIGSTOP) is beyond it.
    """

    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s
        self._out = _open_stderr()

    def feed(self) -> None:
        """The event loop lives."""
        faulthandler.dump_traceback_later(self._silent_s, exit=True, file=self._out)

    def close(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        if self._out != _STDERR:
            os.close(self._out)


def _open_stderr() -> int:
    """One that never blocks: a reader of the log that hangs may be why we do."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        return os.open(f"/proc/self/fd/{_STDERR}", flags)
    return _STDERR
