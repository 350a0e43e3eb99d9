"""Probes and metrics over HTTP, beside an event loop that may hang."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nri_plugin.endpoint import Address, Endpoint
from nri_plugin.metrics import Metrics
from nri_plugin.readiness import Readiness


class Served:
    def __init__(self, address: Address) -> None:
        self.now_s = 0.0
        self.readiness = Readiness(lambda: self.now_s)
        self.metrics = Metrics()
        self.endpoint = Endpoint(address, self.readiness, self.metrics)
        self.endpoint.start()
        until(lambda: self.endpoint.served is not None)

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        place = self.endpoint.served or ""
        if place.startswith("unix:"):
            connection = http.client.HTTPConnection("localhost", timeout=30)
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(place.removeprefix("unix:"))
        else:
            connection = http.client.HTTPConnection(place, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path)
            answer = connection.getresponse()
            text = answer.read().decode()
        return answer.status, text


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(params=["127.0.0.1", "::1", "unix"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    unix = request.param == "unix"
    served = Served(tmp_path / "dir" / "agent.sock" if unix else (request.param, 0))
    yield served
    served.endpoint.close()


def test_ready_and_not_ready(served: Served) -> None:
    served.readiness.session = "nobody listens"
    served.readiness.node = ("no card", "no library")
    assert served.get("/readyz?verbose") == (503, "nobody listens\nno card\nno library\n")
    assert served.get("/healthz") == (200, "ok\n")
    served.readiness.session, served.readiness.node = None, ()
    assert served.get("/readyz") == (200, "ok\n")
    served.now_s = 60
    for page in ("/healthz", "/readyz"):
        assert served.get(page) == (503, "the agent's event loop has not run for 60 s\n")


def test_metrics(served: Served) -> None:
    served.metrics.refusals.labels("CARD_UNKNOWN").inc()
    status, text = served.get("/metrics")
    assert status == 200
    assert 'gpuslice_nri_refusals_total{reason="CARD_UNKNOWN"} 1.0' in text
    assert "process_resident_memory_bytes" in text


def test_anything_else(served: Served) -> None:
    assert served.get("/")[0] == 404
    assert served.get("/readyz", "HEAD") == (503, "")
    assert served.get("/readyz", "POST")[0] == 501


def test_idle_clients_do_not_shut_others_out_for_long(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than there are places: those without one are turned away, and one is free again."""
    monkeypatch.setattr("nri_plugin.endpoint._Page.timeout", 0.2)
    place = served.endpoint.served or ""
    idle = []
    for _ in range(12):
        if place.startswith("unix:"):
            client = socket.socket(socket.AF_UNIX)
            client.connect(place.removeprefix("unix:"))
        else:
            host, _, port = place.rpartition(":")
            client = socket.create_connection((host.strip("[]"), int(port)))
        idle.append(client)

    def answered() -> bool:
        try:
            return served.get("/healthz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    until(answered)
    for client in idle:
        client.close()


def test_a_socket_that_a_dead_agent_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    served = Served(path)
    assert served.get("/healthz")[0] == 200
    assert path.stat().st_mode & 0o777 == 0o600
    served.endpoint.close()


def test_an_address_in_use_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("nri_plugin.endpoint._RETRY_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        endpoint = Endpoint(("127.0.0.1", port), Readiness(lambda: 0.0), Metrics())
        endpoint.start()
        until(lambda: "endpoint not served" in caplog.text)
        assert endpoint.served is None
    until(lambda: endpoint.served == f"127.0.0.1:{port}")
    assert caplog.text.count("endpoint not served") == 1
    endpoint.close()
