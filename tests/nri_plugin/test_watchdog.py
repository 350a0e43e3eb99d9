"""A process that hangs ends, whatever it hangs in, and says where."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.node

HANGS = {
    "in a call of the kernel": "import time; time.sleep(600)",
    "with the interpreter's lock": "import ctypes; ctypes.PyDLL(None).sleep(600)",
    "in its own log": "import os\nwhile True: os.write(2, bytes(4096))",
}
FED = "from nri_plugin.readiness import Watchdog\nwatchdog = Watchdog({})\nwatchdog.feed()\n"


@pytest.mark.parametrize("hang", HANGS.values(), ids=HANGS)
def test_one_that_hangs_is_ended(hang: str) -> None:
    read, write = os.pipe()
    command = [sys.executable, "-c", FED.format(0.2) + hang]
    child = subprocess.Popen(command, stderr=write)
    os.close(write)
    try:
        assert child.wait(60) == 1  # nobody reads the pipe
        with os.fdopen(read, "rb") as log:
            said = log.read().replace(b"\0", b"").decode()
    finally:
        child.kill()
    assert 'File "<string>"' in said or "os.write" in hang


def test_a_log_that_cannot_be_opened_again_is_written_as_it_is() -> None:
    """A socket, under systemd."""
    end = "import socket, os\nours, theirs = socket.socketpair()\nos.dup2(theirs.fileno(), 2)\n"
    hang = "import threading\nthreading.Timer(0, lambda: None)\nimport time; time.sleep(600)"
    child = subprocess.run([sys.executable, "-c", end + FED.format(0.2) + hang], timeout=60)
    assert child.returncode == 1


@pytest.mark.parametrize("then", ["Watchdog(600).feed()", "watchdog.close()"])
def test_one_that_was_fed_again_or_let_go_lives(then: str) -> None:
    rest = f"{then}\nimport time; time.sleep(1)\n"
    child = subprocess.run([sys.executable, "-c", FED.format(0.3) + rest], timeout=60)
    assert child.returncode == 0


AGENT = """
import dataclasses, sys, time
from nri_plugin import __main__, agent, command_line
whole, silent_s = command_line.from_arguments, float(sys.argv.pop())
command_line.from_arguments = lambda *a: dataclasses.replace(whole(*a), silent_s=silent_s)
async def look(node):
    time.sleep(600)
agent.look = look
__main__.main()
"""


def test_an_agent_whose_event_loop_hangs_gives_its_lock_back(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    places = {
        **{"--nri-socket": "nri.sock", "--run-dir": "run", "--store-dir": "store"},
        **{"--cdi-dir": "cdi", "--library": "absent.so"},
    }
    flags = [word for flag, name in places.items() for word in (flag, str(tmp_path / name))]
    child = subprocess.run(
        [sys.executable, "-c", AGENT, *flags, "--http", "off", "2"],
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    assert child.returncode == 1
    assert "in look" in child.stderr
