"""What people and probes see of an agent at work, over a real containerd."""

from __future__ import annotations

import http.client
import socket

import pytest

from contract import names
from simgpu.lab.catalogue import PYTHON_IMAGE
from simgpu.lab.cri import CriError, Process
from simgpu.lab.lab import Lab

from .conftest import GIB

pytestmark = pytest.mark.node

OWN = Process(PYTHON_IMAGE)


def get(lab: Lab, page: str) -> tuple[int, str]:
    """A page of the agent's endpoint."""
    connection = http.client.HTTPConnection("localhost", timeout=30)
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.connect(str(lab.agent_http))
        connection.request("GET", page)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def sample(lab: Lab, line: str) -> float:
    """The value of one line of the metrics, 0 where it is not there yet."""
    for each in get(lab, "/metrics")[1].splitlines():
        if each.startswith(line + " "):
            return float(each.rpartition(" ")[2])
    return 0.0


def test_readiness_follows_the_session(lab: Lab) -> None:
    lab.wait_until(lambda: get(lab, "/readyz") == (200, "ok\n"), "the agent to be ready")
    sessions = sample(lab, "gpuslice_nri_sessions_total")
    lab.containerd.stop()
    lab.wait_until(lambda: get(lab, "/readyz")[0] == 503, "the agent to see that containerd went")
    lab.wait_until(lambda: "nobody listens" in get(lab, "/readyz")[1], "the reason")
    assert get(lab, "/healthz") == (200, "ok\n")
    assert sample(lab, "gpuslice_nri_session_up") == 0
    lab.containerd.start()
    lab.wait_until(lambda: get(lab, "/readyz")[0] == 200, "the agent to register again")
    lab.cri.version()
    assert sample(lab, "gpuslice_nri_sessions_total") == sessions + 1
    assert sample(lab, 'gpuslice_nri_reconnects_total{cause="ended"}') >= 1


def test_a_grant_and_a_refusal_are_counted_and_logged(lab: Lab) -> None:
    said = lab.agent_log.stat().st_size
    refusals = 'gpuslice_nri_refusals_total{reason="ALLOCATION_MALFORMED"}'
    adjusted = (
        'gpuslice_nri_request_duration_seconds_count{outcome="adjusted",request="CreateContainer"}'
    )
    before = sample(lab, refusals), sample(lab, adjusted)
    with lab.pod("counted", lab.share({"main": [(0, 20 * GIB, 50)]})) as pod:
        pod.run("main", OWN)
        lab.wait_until(
            lambda: sample(lab, "gpuslice_containers_with_grant") == 1, "the grant to be counted"
        )
    forged = {names.ANNOTATION_DEVICE_ALLOCATED: '{"gpu":"\nlevel=error forged"}'}
    with lab.pod("forger", forged) as pod, pytest.raises(CriError):
        pod.create("main", OWN)
    assert (sample(lab, refusals), sample(lab, adjusted)) == (before[0] + 1, before[1] + 1)
    lines = lab.agent_log.read_bytes()[said:].decode("ascii").splitlines()
    assert not [line for line in lines if not line.startswith("time=")]
    granted = [line for line in lines if "outcome=adjusted" in line and "pod=counted" in line]
    refused = [line for line in lines if "outcome=refused" in line and "pod=forger" in line]
    assert len(granted) == len(refused) == 1
    assert "request=CreateContainer" in granted[0] and "container=main" in granted[0]
    assert "reason=ALLOCATION_MALFORMED" in refused[0] and "namespace=default" in refused[0]
