"""Probes and metrics over HTTP, beside an event loop that may hang."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from prometheus_client import Counter, Gauge

from nri_plugin.doctor import host
from nri_plugin.doctor.facts import Agent
from nri_plugin.endpoint import Endpoint, _listener
from nri_plugin.metrics import Metrics, Series
from nri_plugin.readiness import Readiness
from nri_plugin.settings import Address
from tests.nri_plugin.doctor.whole_node import WHOLE
from tests.support import Clock, until


class Served:
    def __init__(self, address: Address) -> None:
        self.clock = Clock()
        self.readiness = Readiness(self.clock)
        self.metrics = Metrics()
        self.endpoint = Endpoint(address, self.readiness, self.metrics)
        self.endpoint.start()
        until(lambda: self.endpoint.served is not None, "the endpoint serves")

    @property
    def address(self) -> Address:
        place = self.endpoint.served or ""
        if place.startswith("unix:"):
            return Path(place.removeprefix("unix:"))
        name, _, port = place.rpartition(":")
        return name.strip("[]"), int(port)

    def connect(self) -> socket.socket:
        if isinstance(self.address, Path):
            client = socket.socket(socket.AF_UNIX)
            client.connect(str(self.address))
            return client
        return socket.create_connection(self.address)

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = self.connect()
        with contextlib.closing(connection):
            connection.request(method, path)
            answer = connection.getresponse()
            text = answer.read().decode()
        return answer.status, text


@pytest.fixture(params=["127.0.0.1", "::1", "unix"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    """Yield an endpoint at TCP, or at the path of a socket that an exited agent has left."""
    path = tmp_path / "agent.sock"
    if request.param == "unix":
        with socket.socket(socket.AF_UNIX) as unserved:
            unserved.bind(str(path))
    served = Served(path if request.param == "unix" else (request.param, 0))
    assert not path.exists() or path.stat().st_mode & 0o777 == 0o600
    yield served
    served.endpoint.close()


def test_ready_and_not_ready(served: Served) -> None:
    readiness = served.readiness
    readiness.session, readiness.node = "nothing listens", ("no GPU", "no library")
    settings = replace(WHOLE.settings, http=served.address)
    assert host._agent(settings) == Agent(False, "nothing listens; no GPU; no library")
    assert served.get("/readyz?verbose") == (503, "nothing listens\nno GPU\nno library\n")
    assert served.get("/healthz") == (200, "ok\n")
    readiness.session, readiness.node = None, ()
    assert host._agent(settings) == Agent(True, "ok")
    assert served.get("/readyz") == (200, "ok\n")
    readiness.grants = ("a grant is not confirmed",)
    assert served.get("/readyz") == (200, "ok\na grant is not confirmed\n")
    readiness.grants = ()
    served.clock.seconds += 60
    for page in ("/healthz", "/readyz"):
        assert served.get(page) == (503, "the agent's event loop has not run for 60 s\n")


def test_metrics_and_other_requests(served: Served) -> None:
    served.metrics.refusals.labels("GPU_UNKNOWN").inc()
    status, text = served.get("/metrics")
    assert status == 200
    assert 'gpuslice_nri_refusals_total{reason="GPU_UNKNOWN"} 1.0' in text
    assert "process_resident_memory_bytes" in text
    assert served.get("/")[0] == 404
    assert served.get("/readyz", "HEAD") == (503, "")
    assert served.get("/readyz", "POST")[0] == 405


def test_slow_clients_do_not_keep_probes_away(served: Served) -> None:
    """Slow clients never send a whole request, and reconnect when they are disconnected."""
    ended, rounds = threading.Event(), list[int]()

    def send_slowly() -> None:
        clients: list[socket.socket] = []
        while not ended.wait(0.05):
            while len(clients) < 160:
                clients.append(served.connect())
                clients[-1].send(b"GET /healthz HTTP/1.1\r\nX: ")
            for client in list(clients):
                try:
                    client.send(b"a")
                except OSError:
                    clients.remove(client)
                    client.close()
            rounds.append(len(clients))
        for client in clients:
            client.close()

    slow = threading.Thread(target=send_slowly, daemon=True)
    slow.start()
    try:
        until(lambda: len(rounds) > 2, "several rounds")
        assert [served.get("/healthz")[0] for _ in range(8)] == [200] * 8
    finally:
        ended.set()
        slow.join()


def test_a_head_of_any_size_is_not_read(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with served.connect() as client:
        with contextlib.suppress(OSError):
            client.sendall(b"GET /healthz HTTP/1.1\r\nX: " + b"a" * (1 << 20))
        client.settimeout(30)
        with contextlib.suppress(ConnectionError):
            assert client.recv(12) in (b"HTTP/1.0 400", b"HTTP/1.1 400")
    assert caplog.text == ""
    assert served.get("/healthz")[0] == 200


def test_an_address_in_use_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("nri_plugin.endpoint._RETRY_S", 0.01)
    listener = Mock(wraps=_listener)
    monkeypatch.setattr("nri_plugin.endpoint._listener", listener)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        endpoint = Endpoint(("127.0.0.1", port), Readiness(Clock()), Metrics())
        endpoint.start()
        until(lambda: listener.call_count > 3, "several attempts")
        assert endpoint.served is None
    until(lambda: endpoint.served == f"127.0.0.1:{port}", "the endpoint serves")
    assert caplog.text.count("endpoint not served") == 1
    endpoint.close()


def test_a_counter_grows_by_equal_values_and_series_that_end_are_removed() -> None:
    metrics = Metrics()
    busy, share = Series(metrics.busy), Series(metrics.requested)
    labels = ("ns", "p", "c", "GPU-1")

    def shown(metric: Counter | Gauge) -> list[float]:
        return [
            each.value
            for family in metric.collect()
            for each in family.samples
            if "created" not in each.name
        ]

    for _ in range(2):
        busy.update({labels: 1.5})
        share.update({labels: 0.5})
    assert (shown(metrics.busy), shown(metrics.requested)) == ([3.0], [0.5])
    busy.update({})
    share.update({})
    assert shown(metrics.busy) == shown(metrics.requested) == []
