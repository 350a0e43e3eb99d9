"""The agent's arbiter: children that serve, fail, hang or are killed."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuslice.contract import names
from nri_plugin.gpu.arbiter_process import ArbiterProcess
from nri_plugin.metrics import Metrics
from tests.support import jump, until, until_async

BEATS = """
import select, sys
while not select.select([0], [], [], 0.05)[0]:
    os.write(1, b"s")
    open(sys.argv[1] + "/beats", "a").write("s")
"""
SERVES = "import sys; os.write(1, b's'); sys.stdin.read()"
FAILS = f"import sys; sys.exit('{names.ARBITER_REPORTS}no GPU\\nOSError: no space')"
IGNORES_EOF = "import time; time.sleep(600)"


class Node:
    """The agent's arbiter, whose program the test chooses, and the agent's log."""

    def __init__(self, root: Path, log: pytest.LogCaptureFixture) -> None:
        log.set_level("INFO")
        self.log, self.beats = log, root / "beats"
        self._pid, self._program, self._metrics = root / "pid", root / "program.py", Metrics()
        self.arbiter = ArbiterProcess(root, os.environ, self._metrics)
        self.arbiter.command = (sys.executable, str(self._program))
        self.arbiter.leave_s = self.arbiter.heartbeat_timeout_s = 60

    @property
    def up(self) -> bool:
        return self._metrics.registry.get_sample_value("gpuslice_arbiter_up") == 1

    @property
    def starts(self) -> float:
        return self._metrics.registry.get_sample_value("gpuslice_arbiter_starts_total") or 0

    @property
    def pid(self) -> int:
        """The child's process ID, or 0 until the child has written it."""
        return int((self._pid.exists() and self._pid.read_text()) or 0)

    def exits(self) -> list[str]:
        return [text for text in self.log.messages if "arbiter exited" in text]

    async def serving(self, after: int = 0) -> int:
        """Wait until a child other than `after` serves. Return its process ID."""
        await until_async(lambda: self.up and self.pid not in (0, after))
        return self.pid

    @asynccontextmanager
    async def running(self, program: str) -> AsyncIterator[None]:
        noted = f"import os; open({str(self._pid)!r}, 'w').write(str(os.getpid()))\n"
        self._program.write_text(noted + program)
        running = asyncio.create_task(self.arbiter.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait({running})
        assert not self.up


@pytest.fixture
def node(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Node:
    return Node(tmp_path, caplog)


def gone(number: int) -> None:
    until(lambda: not Path(f"/proc/{number}").exists(), f"the end of process {number}")


def pause_until_it_beats(file: Path) -> None:
    """Block the agent's event loop until the child has sent heartbeats, which nothing reads."""
    until(file.exists, "a heartbeat")
    before = file.stat().st_size
    until(lambda: file.stat().st_size > before + 1, "heartbeats")


@pytest.mark.parametrize(
    ("program", "sent", "why"),
    [
        (SERVES, signal.SIGKILL, "signal 9"),
        (BEATS, signal.SIGSTOP, "killed: no heartbeat for 60 s"),
        (SERVES, None, "killed: no heartbeat for 60 s"),
    ],
    ids=["killed", "stopped", "stuck"],
)
async def test_an_arbiter_without_heartbeats_is_killed_and_replaced(
    node: Node, program: str, sent: signal.Signals | None, why: str
) -> None:
    async with node.running(program):
        first = await node.serving()
        assert os.getsid(first) == first, "no signal of the agent's terminal reaches it"
        if sent is not None:
            os.kill(first, sent)
        while node.starts < 2:
            if sent is not signal.SIGKILL:
                jump(60)
            await asyncio.sleep(0.05)
        gone(first)
        await node.serving(after=first)
        assert sent is not signal.SIGKILL or node.starts == 2
    assert why in node.exits()[0] and "again_in_s=0.1" in node.exits()[0]


async def test_an_arbiter_outlasts_a_halt_of_the_agent_and_ends_with_its_input(node: Node) -> None:
    """A heartbeat that the agent reads too late still counts as one."""
    async with node.running(BEATS):
        await node.serving()
        for _ in range(3):
            pause_until_it_beats(node.beats)
            jump(90)
            await asyncio.sleep(0.2)
    gone(node.pid)
    assert node.starts == 1
    assert any(text.startswith("arbiter started") for text in node.log.messages)
    assert not [text for text in node.log.messages if "killed" in text]


@pytest.mark.parametrize(
    ("served_s", "pauses"), [(0, ["0.1", "0.2", "0.4"]), (5, ["0.1", "0.1", "0.1"])]
)
async def test_each_failure_doubles_the_pause(node: Node, served_s: int, pauses: list[str]) -> None:
    """An arbiter that served for long is replaced at once."""
    seconds = itertools.count(0, served_s)
    node.arbiter.now = lambda: float(next(seconds))
    async with node.running(FAILS):
        await until_async(lambda: node.starts >= 4)
    reports = {text for text in node.log.messages if text.startswith("arbiter reports")}
    assert reports == {'arbiter reports problem="no GPU"'}
    said = node.exits()[:3]
    assert ["OSError: no space" in text for text in said] == [True] * 3
    assert [text.rpartition("again_in_s=")[2] for text in said] == pauses


async def test_an_arbiter_that_ignores_the_end_of_its_input_is_killed(node: Node) -> None:
    """An arbiter that sends no first heartbeat is killed, too."""
    node.arbiter.start_s, node.arbiter.leave_s = 0.5, 0.2
    async with node.running(IGNORES_EOF):
        await until_async(lambda: node.starts >= 2 and node.pid != 0)
    gone(node.pid)
    assert "killed: no heartbeat for 0.5 s" in node.log.text
    assert any("arbiter killed" in text for text in node.log.messages)
