"""A supervised program ends with its owner at the latest."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab.cluster.supervised import Process
from tests.support import until


def is_running(pid: int) -> bool:
    """A zombie has exited: the process that reaps orphans may be slow."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_one_that_ignores_the_signal_or_is_stopped_ends_too(tmp_path: Path) -> None:
    ignoring = Process(["bash", "-c", "trap '' TERM; echo up; sleep 600"], tmp_path / "log")
    until(lambda: ignoring.log_tail() == "up\n", "it runs")
    ignoring.stop(within_s=0.1)
    stopped = Process(["sleep", "600"], tmp_path / "other")
    stopped.send(signal.SIGSTOP)
    stopped.kill()
    assert not is_running(ignoring.pid) and not is_running(stopped.pid)


_OWNER = """
import sys, time
from pathlib import Path
from lab.cluster.supervised import Process
print(Process(["sleep", "600"], Path(sys.argv[1]), hostname=sys.argv[2]).pid, flush=True)
while True:  # a signal just before a sleep would be handled at its end
    time.sleep(0.1)
"""


@pytest.mark.parametrize("hostname", ["", "pod-1"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_program_ends_with_its_owner(
    tmp_path: Path, number: signal.Signals, hostname: str
) -> None:
    command = [sys.executable, "-c", _OWNER, str(tmp_path / "log"), hostname]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as owner:
        assert owner.stdout is not None
        program = int(owner.stdout.readline())
        owner.send_signal(number)
    until(lambda: not is_running(program), "it has ended")
