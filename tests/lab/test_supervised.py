"""A kept program ends with its owner, with its keeper, or by itself, and nothing of it is left."""

from __future__ import annotations

import os
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


def test_a_program_writes_its_log_and_gets_the_signal(tmp_path: Path) -> None:
    script = "trap 'echo terminated; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    process = Process(["bash", "-c", script], tmp_path / "log")
    until(lambda: process.log_tail() == "up\n", "it runs")
    assert process.running
    process.stop()
    assert not process.running
    assert process.log_tail() == "up\nterminated\n"


def test_one_that_ignores_the_signal_or_is_stopped_ends_too(tmp_path: Path) -> None:
    ignoring = Process(["bash", "-c", "trap '' TERM; echo up; sleep 600"], tmp_path / "log")
    until(lambda: ignoring.log_tail() == "up\n", "it runs")
    ignoring.stop(within_s=0.1)
    stopped = Process(["sleep", "600"], tmp_path / "other")
    stopped.send(signal.SIGSTOP)
    stopped.kill()
    assert not is_running(ignoring.pid) and not is_running(stopped.pid)


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="/no/such cannot be started"):
        Process(["/no/such"], tmp_path / "log")


_OWNER = """
import sys, time
from pathlib import Path
from lab.cluster.supervised import Process
directory = Path(sys.argv[1])
one = Process(["sleep", "600"], directory / "log", removed_after_owner=directory)
print(one.pid, one._keeper.pid, flush=True)
while True:  # a signal just before a sleep would be handled at its end
    time.sleep(0.1)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_program_ends_with_its_owner_and_its_directory_is_removed(
    tmp_path: Path, number: signal.Signals
) -> None:
    directory = tmp_path / "owned"
    directory.mkdir()
    command = [sys.executable, "-c", _OWNER, str(directory)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as owner:
        assert owner.stdout is not None
        program, keeper = (int(pid) for pid in owner.stdout.readline().split())
        owner.send_signal(number)
    until(lambda: not is_running(program) and not is_running(keeper), "both have ended")
    assert not directory.exists()


def test_a_program_ends_with_its_keeper(tmp_path: Path) -> None:
    process = Process(["sleep", "600"], tmp_path / "log")
    os.kill(process._keeper.pid, signal.SIGKILL)
    until(lambda: not is_running(process.pid), "it has ended")
    process.stop()
