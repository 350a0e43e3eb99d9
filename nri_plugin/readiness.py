"""Whether this agent can give containers their share now, and if not, why.

The event loop writes the fields of Readiness, and the endpoint's thread reads them. Each write
replaces a whole field. An unusable GPU does not make the node unready: it becomes unhealthy in the
Device object.

The watchdog ends the process if its event loop hangs for too long. Otherwise the agent would keep
its lock, and no other agent could serve the node. A liveness probe usually acts earlier.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from nri_plugin.policy.memory_limits import Limits, MemoryLimits

BEAT_S: Final = 1.0
"""Interval of the event loop's heartbeat."""
BEAT_LATE_S: Final = 10.0
"""Time without a heartbeat after which the event loop counts as hung."""
_STDERR: Final = 2


class Readiness:
    """The agent's readiness. now: a monotonic clock in seconds, which any thread may call.
    on_heartbeat: called every BEAT_S while the event loop runs."""

    def __init__(
        self, now: Callable[[], float], on_heartbeat: Callable[[], None] = lambda: None
    ) -> None:
        self._now = now
        self._on_heartbeat = on_heartbeat
        self._beat_at = now()
        self.session: str | None = "not connected to the container runtime yet"
        """Why there is no session with the runtime. None: there is a session."""
        self.node: Sequence[str] = ("the node has not been inspected yet",)
        self.cluster: str | None = None
        """Why the agent does not write its API objects. None: it writes them."""
        self.kubernetes: str | None = None
        """Why the API server's version is not supported."""
        self.device_plugin: str | None = None
        """Why the node belongs to another device plugin. None: the node is ours."""
        self.unusable: Mapping[str, str] = {}
        """Why a GPU that the driver lists cannot be injected into containers, by UUID."""
        self.label: str | None = None
        """Why the Node's label of the front end is not followed. None: it is."""
        self.front_end: Sequence[str] = ()
        """Notes for the operator: what a change of the front end waits for."""
        self.claims: str | None = None
        """Why the container runtime cannot report the claims of containers."""
        self.grants: Sequence[str] = ()
        """Notes for the operator: grants that the API server has not confirmed."""
        self.limits = Limits(MemoryLimits.LIBRARY)

    def beat(self) -> None:
        self._beat_at = self._now()
        self._on_heartbeat()

    @property
    def hang(self) -> str | None:
        """Return why the event loop counts as hung. None: it is not hung."""
        late_s = self._now() - self._beat_at
        if late_s <= BEAT_LATE_S:
            return None
        return f"the agent's event loop has not run for {late_s:.0f} s"

    @property
    def problems(self) -> Sequence[str]:
        """Return all reasons why the agent is not ready. Empty: the agent is ready."""
        cluster = (self.kubernetes, self.cluster, self.device_plugin, self.label)
        problems = (self.hang, self.session, *self.node, *cluster)
        return [problem for problem in problems if problem is not None]

    @property
    def notes(self) -> Sequence[str]:
        """Return notes for the operator that do not affect readiness."""
        chosen = self.limits.chosen is not MemoryLimits.LIBRARY
        limits = [self.limits.text] if chosen else []
        return (*limits, *self.unusable.values(), *self.grants, *self.front_end)


class Watchdog:
    """Prints all stacks and ends the process if `feed` is not called for `timeout_s`. Active from
    the first `feed` until `close`. Python's faulthandler uses a C thread, which runs even while
    the interpreter hangs, but not while the process is stopped (SIGSTOP)."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._out = _open_stderr()

    def feed(self) -> None:
        """Restart the timer. The running event loop calls this."""
        faulthandler.dump_traceback_later(self._timeout_s, exit=True, file=self._out)

    def close(self) -> None:
        faulthandler.cancel_dump_traceback_later()


def _open_stderr() -> int:
    """Open stderr for non-blocking writes. A hanging log reader may be why the event loop hangs."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        return os.open(f"/proc/self/fd/{_STDERR}", flags)
    return _STDERR
