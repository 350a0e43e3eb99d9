"""Every event is counted, and logged in one line."""

from __future__ import annotations

import logging
import os
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

RUNTIME = RuntimeInfo("containerd", "v2.4.2", "v0.12.3", 2000)


class Watched:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.metrics = Metrics()
        self.readiness = Readiness(lambda: self.now_s)
        self.observer = Observer(self.metrics, self.readiness)

    def value(self, name: str, /, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


def test_a_refusal_is_counted_by_its_reason_and_written(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    of, reason = Pod("u", "ns", "p").log_fields("main", "c0"), Reason.GPU_UNKNOWN.name
    refused = Decision("CreateContainer", Outcome.REFUSED, 0.003, of, reason, "no such\ngpu")
    watched.observer.decided(refused)
    watched.observer.decided(refused)
    assert watched.value("gpuslice_nri_refusals_total", reason="GPU_UNKNOWN") == 2
    labels = {"request": "CreateContainer", "outcome": "refused"}
    assert watched.value("gpuslice_nri_request_duration_seconds_count", **labels) == 2
    assert watched.value("gpuslice_nri_request_duration_seconds_sum", **labels) == 0.006
    (line, _) = caplog.messages
    assert line == (
        "decision request=CreateContainer outcome=refused duration_ms=3 namespace=ns pod=p uid=u"
        ' container=main container_id=c0 reason=GPU_UNKNOWN text="no such\\ngpu"'
    )


def test_an_adjustment_is_written_with_what_it_gave(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    given = {"c1": {"gpus": "GPU-a:20Gi:50,GPU-b:512Mi:100", "library": "40223d11", "key": "c1"}}
    observer = Observer(Metrics(), Watched().readiness, given.__getitem__)
    observer.decided(Decision("CreateContainer", Outcome.ADJUSTED, 0.001, {"container_id": "c1"}))
    observer.decided(Decision("CreateContainer", Outcome.REFUSED, 0.001, {"container_id": "c2"}))
    assert "gpus=GPU-a:20Gi:50,GPU-b:512Mi:100 library=40223d11 key=c1" in caplog.messages[0]
    assert "gpus=" not in caplog.messages[1]
    observer.decided(Decision("StartContainer", Outcome.PASSED, 0.0001))
    assert len(caplog.messages) == 2, "what is routine is not written"


def test_the_start_and_the_end_of_a_session_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.readiness.node = ()
    for _ in range(3):
        watched.observer.lost("absent", "nothing listens")
    assert len(caplog.messages) == 1
    assert list(watched.readiness.problems) == ["nothing listens"]
    watched.observer.connected("/nri.sock")
    assert "not registered and synchronized yet" in watched.readiness.problems[0]
    watched.observer.decided(
        Decision("Synchronize", Outcome.PASSED, 0.01, {"pods": 2, "containers": 3})
    )
    watched.observer.ready(RUNTIME)
    assert not watched.readiness.problems
    assert watched.value("gpuslice_nri_session_up") == 1
    assert watched.value("gpuslice_nri_synchronize_pods") == 2
    assert watched.value("gpuslice_nri_synchronize_containers") == 3
    known = {"name": "containerd", "version": "v2.4.2", "nri": "v0.12.3"}
    assert watched.value("gpuslice_nri_runtime_info", **known) == 1
    watched.observer.lost("ended", "ended")
    assert watched.value("gpuslice_nri_session_up") == 0
    assert watched.value("gpuslice_nri_reconnects_total", cause="absent") == 3
    assert watched.value("gpuslice_nri_reconnects_total", cause="ended") == 1
    assert watched.value("gpuslice_nri_sessions_total") == 1


def test_a_loop_that_hangs_is_not_ready() -> None:
    watched = Watched()
    watched.readiness.node, watched.readiness.session = (), None
    watched.now_s = BEAT_LATE_S
    assert watched.readiness.hang is None
    watched.now_s = BEAT_LATE_S + 1
    assert watched.readiness.problems == ["the agent's event loop has not run for 11 s"]
    watched.readiness.beat()
    assert not watched.readiness.problems


def test_every_metric_follows_prometheus_conventions() -> None:
    """Names have base units and _total, and help texts are sentences."""
    for family in Metrics().registry.collect():
        if not family.name.startswith("process_"):
            assert family.name.startswith("gpuslice_")
            assert family.documentation.endswith(".") and len(family.documentation) > 20


pytestmark = pytest.mark.node

SOCKET = "import socket, os\nours, theirs = socket.socketpair()\nos.dup2(theirs.fileno(), 2)\n"
"""systemd's log cannot be opened again."""
HANGS = {
    "with a socket as log": SOCKET + "import time; time.sleep(600)",
    "in a call of the kernel": "import time; time.sleep(600)",
    "with the interpreter's lock": "import ctypes; ctypes.PyDLL(None).sleep(600)",
    "in its own log": "import os\nwhile True: os.write(2, bytes(4096))",
}
FED = "from nri_plugin.readiness import Watchdog\nwatchdog = Watchdog({})\nwatchdog.feed()\n"


@pytest.mark.parametrize("hang", HANGS.values(), ids=HANGS)
def test_the_watchdog_ends_a_process_that_hangs(hang: str) -> None:
    read, write = os.pipe()
    command = [sys.executable, "-c", FED.format(0.2) + hang]
    child = subprocess.Popen(command, stderr=write)
    os.close(write)
    try:
        assert child.wait(60) == 1  # the pipe has no reader
        with os.fdopen(read, "rb") as log:
            said = log.read().replace(b"\0", b"").decode()
    finally:
        child.kill()
    assert 'File "<string>"' in said or "os." in hang


@pytest.mark.parametrize("then", ["Watchdog(600).feed()", "watchdog.close()"])
def test_a_fed_or_released_watchdog_does_not_end_the_process(then: str) -> None:
    rest = f"{then}\nimport time; time.sleep(4)\n"
    child = subprocess.run([sys.executable, "-c", FED.format(3) + rest], timeout=60)
    assert child.returncode == 0


AGENT = """
import dataclasses, sys, time
from nri_plugin import __main__, agent, command_line
whole, watchdog_s = command_line.from_arguments, float(sys.argv.pop())
command_line.from_arguments = lambda *a: dataclasses.replace(whole(*a), watchdog_s=watchdog_s)
async def inspect(node):
    time.sleep(600)
agent.inspect = inspect
__main__.main()
"""


def test_an_agent_whose_event_loop_hangs_gives_its_lock_back(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    places = {
        **{"--nri-socket": "nri.sock", "--run-dir": "run"},
        **{"--cdi-dir": "cdi", "--library": "absent.so"},
    }
    flags = [word for flag, name in places.items() for word in (flag, str(tmp_path / name))]
    child = subprocess.run(
        [sys.executable, "-c", AGENT, *flags, "--http", "off", "5"],
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    assert child.returncode == 1
    assert "in inspect" in child.stderr
