"""Every event is counted, and logged in one line. A process that hangs ends itself."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nri_plugin.metrics import Metrics
from nri_plugin.nri.answers import Decision, Outcome
from nri_plugin.nri.observer import Observer
from nri_plugin.policy.model import Pod
from nri_plugin.policy.refusals import Reason
from nri_plugin.protocol.session_events import RuntimeInfo
from nri_plugin.readiness import BEAT_LATE_S, Readiness
from tests.support import Clock

pytestmark = pytest.mark.node


class Watched:
    def __init__(self) -> None:
        self.clock = Clock()
        self.metrics = Metrics()
        self.readiness = Readiness(self.clock)
        self.observer = Observer(self.metrics, self.readiness)

    def value(self, name: str, /, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"gpuslice_nri_{name}", labels)


def test_a_refusal_is_counted_by_its_reason_and_written(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    of, reason = Pod("u", "ns", "p").log_fields("main", "c0"), Reason.GPU_UNKNOWN.name
    refused = Decision("CreateContainer", Outcome.REFUSED, 0.0031234, of, reason, "no such\ngpu")
    watched.observer.decided(refused)
    watched.observer.decided(refused)
    assert watched.value("refusals_total", reason="GPU_UNKNOWN") == 2
    labels = {"request": "CreateContainer", "outcome": "refused"}
    assert watched.value("request_duration_seconds_count", **labels) == 2
    assert watched.value("request_duration_seconds_sum", **labels) == 0.0062468
    (line, _) = caplog.messages
    assert line == (
        "decision request=CreateContainer outcome=refused duration_ms=3.123 namespace=ns pod=p"
        ' uid=u container=main container_id=c0 reason=GPU_UNKNOWN text="no such\\ngpu"'
    )


def test_an_adjustment_is_written_with_what_it_gave(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    given = {"c1": {"gpus": "GPU-a:20Gi:50,GPU-b:512Mi:100", "policy": "fair", "key": "c1"}}
    observer = Observer(Metrics(), Watched().readiness, given.__getitem__)
    observer.decided(Decision("CreateContainer", Outcome.ADJUSTED, 0.001, {"container_id": "c1"}))
    observer.decided(Decision("CreateContainer", Outcome.REFUSED, 0.001, {"container_id": "c2"}))
    assert "gpus=GPU-a:20Gi:50,GPU-b:512Mi:100 policy=fair key=c1" in caplog.messages[0]
    assert "gpus=" not in caplog.messages[1]
    observer.decided(Decision("StartContainer", Outcome.PASSED, 0.0001))
    assert len(caplog.messages) == 2, "what is routine is not written"


def test_the_start_and_the_end_of_a_session_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    observer, readiness, value = watched.observer, watched.readiness, watched.value
    readiness.node = ()
    for _ in range(3):
        observer.lost("absent", "nothing listens")
    assert len(caplog.messages) == 1
    assert list(readiness.problems) == ["nothing listens"]
    for _ in range(2):
        observer.waiting("another agent serves the node")
    assert [len(caplog.messages), *readiness.problems] == [2, "another agent serves the node"]
    observer.connected("/nri.sock")
    assert "not registered and synchronized yet" in readiness.problems[0]
    found = {"pods": 2, "containers": 3}
    observer.decided(Decision("Synchronize", Outcome.PASSED, 0.01, found))
    observer.ready(RuntimeInfo("containerd", "v2.4.2", "v0.12.3", 2000))
    assert not readiness.problems
    assert value("session_up") == 1
    assert (value("synchronize_pods"), value("synchronize_containers")) == (2, 3)
    assert value("runtime_info", name="containerd", version="v2.4.2", nri="v0.12.3") == 1
    observer.lost("ended", "ended")
    assert value("session_up") == 0
    assert value("reconnects_total", cause="absent") == 3
    assert value("reconnects_total", cause="ended") == 1
    assert value("sessions_total") == 1


def test_a_loop_that_hangs_is_not_ready() -> None:
    watched = Watched()
    readiness = watched.readiness
    readiness.node, readiness.session = (), None
    watched.clock.seconds += BEAT_LATE_S
    assert readiness.hang is None
    watched.clock.seconds += 1
    assert readiness.problems == ["the agent's event loop has not run for 11 s"]
    readiness.beat()
    assert not readiness.problems


def test_every_metric_follows_prometheus_conventions() -> None:
    for family in Metrics().registry.collect():
        if not family.name.startswith("process_"):
            assert family.name.startswith("gpuslice_")
            assert family.documentation.endswith(".") and len(family.documentation) > 20


HANGS = {
    "with a socket as log": "import time; time.sleep(600)",
    "in a call of the kernel": "import time; time.sleep(600)",
    "with the interpreter's lock": "import ctypes; ctypes.PyDLL(None).sleep(600)",
    "in its own log": "import os\nwhile True: os.write(2, bytes(4096))",
}
FED = "from nri_plugin.readiness import Watchdog\nwatchdog = Watchdog({})\nwatchdog.feed()\n"


@pytest.mark.parametrize("hang", HANGS)
def test_the_watchdog_ends_a_process_that_hangs(hang: str) -> None:
    """A process cannot open its standard error again if it is a socket, as with systemd's log."""
    read, write = os.pipe()
    if "socket" in hang:
        read, write = (each.detach() for each in socket.socketpair())
    command = [sys.executable, "-c", FED.format(0.2) + HANGS[hang]]
    child = subprocess.Popen(command, stderr=write)
    os.close(write)
    try:
        assert child.wait(60) == 1  # nothing reads the pipe meanwhile
        with os.fdopen(read, "rb") as log:
            said = log.read().replace(b"\0", b"").decode()
    finally:
        child.kill()
    assert 'File "<string>"' in said or "own log" in hang


@pytest.mark.parametrize("then", ["Watchdog(600).feed()", "watchdog.close()"])
def test_a_fed_or_released_watchdog_does_not_end_the_process(then: str) -> None:
    rest = f"{then}\nimport time; time.sleep(4)\n"
    child = subprocess.run([sys.executable, "-c", FED.format(3) + rest], timeout=60)
    assert child.returncode == 0


AGENT = """
import dataclasses, sys, time
from nri_plugin import __main__, agent, command_line
whole = command_line.from_arguments
command_line.from_arguments = lambda *a: dataclasses.replace(whole(*a), watchdog_s=5.0)
async def inspect(node):
    time.sleep(600)
agent.inspect = inspect
__main__.main()
"""


def test_an_agent_whose_event_loop_hangs_gives_its_lock_back(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    command: list[str | Path] = [sys.executable, "-c", AGENT, "--http", "off"]
    command += ["--library", tmp_path / "absent.so"]
    command += ["--nri-socket", tmp_path / "nri.sock", "--run-dir", tmp_path / "run"]
    command += ["--cdi-dir", tmp_path / "cdi"]
    child = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120)
    assert child.returncode == 1
    assert "in inspect" in child.stderr
