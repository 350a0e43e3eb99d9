"""Whether this agent can give containers their share now, and if not, why.

Plain state: the event loop sets it, and the endpoint's thread reads it; each field is replaced as a
whole. An unusable GPU is unhealthy in the Device object, and the node stays ready.

The watchdog ends the process if its event loop has not run for too long, because an agent that
hangs keeps the lock, and no other agent can serve the node. The liveness probe reacts earlier.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

BEAT_S: Final = 1.0
"""Interval of the event loop's heartbeat."""
BEAT_LATE_S: Final = 10.0
"""After this time without a heartbeat the event loop counts as hung."""
_STDERR: Final = 2


class Readiness:
    """now: a monotonic clock in seconds, readable from any thread. on_heartbeat: called every
    BEAT_S while the event loop runs."""

    def __init__(
        self, now: Callable[[], float], on_heartbeat: Callable[[], None] = lambda: None
    ) -> None:
        self._now = now
        self._on_heartbeat = on_heartbeat
        self._beat_at = now()
        self.session: str | None = "not connected to the container runtime yet"
        """Why there is no session; None while there is one."""
        self.node: Sequence[str] = ("the node has not been inspected yet",)
        """This node's problems."""
        self.cluster: str | None = None
        """Why the agent does not write its objects at the API server; None: it does."""
        self.device_plugin: str | None = None
        """Why the node belongs to another device plugin; None: it does not."""
        self.unusable: Mapping[str, str] = {}
        """By UUID, why a GPU cannot be injected into containers although the driver lists it."""
        self.grants: Sequence[str] = ()
        """Notes about grants for the operator."""

    def beat(self) -> None:
        self._beat_at = self._now()
        self._on_heartbeat()

    @property
    def hang(self) -> str | None:
        """Return why the event loop counts as hung; None: it runs."""
        late_s = self._now() - self._beat_at
        if late_s <= BEAT_LATE_S:
            return None
        return f"the agent's event loop has not run for {late_s:.0f} s"

    @property
    def problems(self) -> Sequence[str]:
        """Return all reasons why the agent is not ready; empty: it is."""
        problems = (self.hang, self.session, *self.node, self.cluster, self.device_plugin)
        return [problem for problem in problems if problem is not None]

    @property
    def notes(self) -> Sequence[str]:
        """Return notes that apply although the agent is ready."""
        return (*self.unusable.values(), *self.grants)


class Watchdog:
    """Active from the first `feed` until `close`. Reports where the event loop hangs. Python's
    faulthandler uses a C thread, which needs neither the event loop nor the interpreter. It does
    not cover a stopped process (SIGSTOP)."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._out = _open_stderr()

    def feed(self) -> None:
        """The event loop runs; restart the timer."""
        faulthandler.dump_traceback_later(self._timeout_s, exit=True, file=self._out)

    def close(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        if self._out != _STDERR:
            os.close(self._out)


def _open_stderr() -> int:
    """Open stderr non-blocking: a log reader that hangs may be what blocks us."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        return os.open(f"/proc/self/fd/{_STDERR}", flags)
    return _STDERR
