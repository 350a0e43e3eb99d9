"""Logs each answered request and each session in one line, and counts them in the metrics.

The calls run on the event loop and take microseconds. gpuslice/kube/log_lines.py has the log's
format. Requests of containers without a share are logged at level debug only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from gpuslice.kube.log_lines import Line
from nri_plugin.metrics import Metrics
from nri_plugin.nri.answers import Decision, Outcome
from nri_plugin.protocol.session_events import RuntimeInfo
from nri_plugin.readiness import Readiness

_LOG: Final = logging.getLogger(__name__)

_LEVELS: Final[Mapping[Outcome, int]] = {
    Outcome.ADJUSTED: logging.INFO,
    Outcome.PASSED: logging.DEBUG,
    Outcome.REFUSED: logging.WARNING,
    Outcome.LATE: logging.ERROR,
    Outcome.ERROR: logging.ERROR,
}

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass
class Observer:
    """Logs and counts decisions and sessions. granted: takes a container's ID, and returns fields
    of the log that state what the container was given."""

    metrics: Metrics
    readiness: Readiness
    granted: Callable[[str], Mapping[str, str]] = lambda _: _NOTHING
    _logged_cause: str | None = None

    def decided(self, decision: Decision) -> None:
        self.metrics.request_duration.labels(decision.request, decision.outcome).observe(
            decision.duration_s
        )
        if decision.outcome is Outcome.REFUSED:
            self.metrics.refusals.labels(decision.reason or "OTHER").inc()
        about = decision.about
        if "pods" in about:
            self.metrics.synchronized_pods.set(about["pods"])
            self.metrics.synchronized_containers.set(about["containers"])
        adjusted = decision.outcome is Outcome.ADJUSTED
        write(decision, self.granted(about["container_id"]) if adjusted else _NOTHING)

    def waiting(self, why: str) -> None:
        """Record that another agent serves the node. A repeated text is logged once."""
        self.readiness.session = why
        if self._logged_cause != why:
            self._logged_cause = why
            _LOG.warning(Line("waiting for the other agent to exit", why=why))

    def connected(self, place: str) -> None:
        """Record that a runtime accepted the connection. No container is adjusted yet."""
        self.readiness.session = f"connected to {place}, not registered and synchronized yet"

    def ready(self, runtime: RuntimeInfo) -> None:
        """Record that the session is synchronized. Containers are adjusted from now on."""
        self.readiness.session = None
        self._logged_cause = None
        self.metrics.session_up.set(1)
        self.metrics.sessions.inc()
        known = {"name": runtime.name, "version": runtime.version, "nri": runtime.nri_version}
        self.metrics.runtime.info(known)
        _LOG.info(
            Line(
                "session ready",
                runtime=runtime.name,
                version=runtime.version,
                nri=runtime.nri_version or "before 0.12",
                request_timeout_ms=runtime.request_timeout_ms,
            )
        )

    def lost(self, cause: str, why: str) -> None:
        """Record that there is no session. A repeated text is logged at level debug. cause: the
        metric's label."""
        self.readiness.session = why
        self.metrics.session_up.set(0)
        self.metrics.connections_lost.labels(cause).inc()
        level = logging.DEBUG if self._logged_cause == why else logging.WARNING
        self._logged_cause = why
        _LOG.log(level, Line("no session", cause=cause, why=why))


def write(decision: Decision, granted: Mapping[str, str] = _NOTHING) -> None:
    """Log one line for one decision. granted: fields that state what the container was given."""
    level = _LEVELS[decision.outcome]
    if not _LOG.isEnabledFor(level):
        return
    _LOG.log(
        level,
        Line(
            "decision",
            request=decision.request,
            outcome=decision.outcome,
            duration_ms=round(decision.duration_s * 1000, 3),
            **decision.about,
            reason=decision.reason or None,
            text=decision.text or None,
            **granted,
        ),
        exc_info=decision.error,
    )
