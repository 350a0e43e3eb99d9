"""Logs, metrics and probes of a running agent, over a real containerd."""

from __future__ import annotations

import pytest

from lab import pages
from lab.node.lab import Lab

pytestmark = pytest.mark.node


def get(lab: Lab, page: str) -> tuple[int, str]:
    """A page of the agent's endpoint."""
    return pages.get(lab.agent_http, page)


def sample(lab: Lab, line: str) -> float:
    """The value of one line of the metrics, 0 if it is missing."""
    for each in get(lab, "/metrics")[1].splitlines():
        if each.startswith(line + " "):
            return float(each.rpartition(" ")[2])
    return 0.0


def test_readiness_follows_the_session(lab: Lab) -> None:
    lab.wait_until(lambda: get(lab, "/readyz") == (200, "ok\n"), "the agent to be ready")
    sessions = sample(lab, "gpuslice_nri_sessions_total")
    lab.containerd.stop()
    lab.wait_until(lambda: get(lab, "/readyz")[0] == 503, "the agent to see that containerd went")
    lab.wait_until(lambda: "no process listens" in get(lab, "/readyz")[1], "the reason")
    assert get(lab, "/healthz") == (200, "ok\n")
    assert sample(lab, "gpuslice_nri_session_up") == 0
    lab.containerd.start()
    lab.wait_until(lambda: get(lab, "/readyz")[0] == 200, "the agent to register again")
    lab.cri.version()
    assert sample(lab, "gpuslice_nri_sessions_total") == sessions + 1
    assert sample(lab, 'gpuslice_nri_reconnects_total{cause="ended"}') >= 1
