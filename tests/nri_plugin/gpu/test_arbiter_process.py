"""The agent's arbiter: real children, the last of them the real one."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from nri_plugin.gpu.arbiter_process import COMMAND, ArbiterProcess
from nri_plugin.metrics import Metrics
from tests.support import jump, until, until_async

BEATS = """
import select, sys
while not select.select([0], [], [], 0.05)[0]:
    os.write(1, b"s")
    open(sys.argv[1] + "/beats", "a").write("s")
"""
SERVES = "import sys; os.write(1, b's'); sys.stdin.read()"
FAILS = "import sys; sys.exit('no GPU\\nOSError: no space')"
IGNORES_EOF = "import time; time.sleep(600)"


class Node:
    def __init__(self, root: Path, *command: str, **limits_s: float) -> None:
        self.metrics = Metrics()
        self.arbiter = ArbiterProcess(
            root,
            dict(os.environ),
            self.metrics,
            command=command or COMMAND,
            **{"leave_s": 60, "heartbeat_timeout_s": 60, **limits_s},  # type: ignore[arg-type]
        )

    def metric(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(name)

    @property
    def up(self) -> bool:
        return self.metric("gpuslice_arbiter_up") == 1

    @property
    def starts(self) -> float:
        return self.metric("gpuslice_arbiter_starts_total") or 0

    def during(self, work: Callable[[], Awaitable[object]]) -> None:
        async def run() -> None:
            running = asyncio.create_task(self.arbiter.run())
            try:
                await work()
            finally:
                running.cancel()
                await asyncio.wait({running})

        asyncio.run(run())
        assert not self.up


def python(root: Path, program: str, **limits_s: float) -> Node:
    script = root / "program.py"
    script.write_text(f"import os; open({str(root / 'pid')!r}, 'w').write(str(os.getpid()))\n")
    with script.open("a") as file:
        file.write(program)
    return Node(root, sys.executable, str(script), **limits_s)


def pid(root: Path) -> int:
    """The child's number, or 0 while it has not written it."""
    file = root / "pid"
    return int((file.exists() and file.read_text()) or 0)


async def serving(node: Node, root: Path, after: int = 0) -> int:
    """Wait for a child, another one than `after`, to serve; return its number."""
    await until_async(lambda: node.up and pid(root) not in (0, after))
    return pid(root)


def gone(number: int) -> None:
    until(lambda: not Path(f"/proc/{number}").exists(), f"the end of process {number}")


def pause_until_it_beats(root: Path) -> None:
    """The event loop does not run meanwhile, and reads no heartbeat."""
    file = root / "beats"
    until(file.exists, "a heartbeat")
    before = file.stat().st_size
    until(lambda: file.stat().st_size > before + 1, "heartbeats")


def test_an_arbiter_ends_with_its_input(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    node = python(tmp_path, SERVES)
    node.during(lambda: serving(node, tmp_path))
    gone(pid(tmp_path))
    assert node.starts == 1
    assert any(text.startswith("arbiter started") for text in caplog.messages)
    assert not [text for text in caplog.messages if "killed" in text]


def test_an_arbiter_that_is_killed_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = python(tmp_path, SERVES)

    async def work() -> None:
        first = await serving(node, tmp_path)
        os.kill(first, signal.SIGKILL)
        await serving(node, tmp_path, after=first)
        assert node.starts == 2
        gone(first)

    node.during(work)
    said = [text for text in caplog.messages if "arbiter exited" in text]
    assert len(said) == 1 and "signal 9" in said[0] and "again_in_s=0.1" in said[0]


@pytest.mark.parametrize("program", [BEATS, SERVES], ids=["stopped", "stuck"])
def test_an_arbiter_without_heartbeats_is_killed_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, program: str
) -> None:
    node = python(tmp_path, program)

    async def work() -> None:
        first = await serving(node, tmp_path)
        if program is BEATS:
            os.kill(first, signal.SIGSTOP)
        while node.starts < 2:
            jump(60)
            await asyncio.sleep(0.05)
        gone(first)
        await serving(node, tmp_path, after=first)

    node.during(work)
    said = [text for text in caplog.messages if "arbiter exited" in text]
    assert "killed: no heartbeat for 60 s" in said[0] and "again_in_s=0.1" in said[0]


def test_a_halt_of_the_agent_kills_no_arbiter(tmp_path: Path) -> None:
    """Heartbeats that the agent did not read in time are no silence."""
    node = python(tmp_path, BEATS)

    async def work() -> None:
        await until_async(lambda: node.up)
        for _ in range(3):
            pause_until_it_beats(tmp_path)
            jump(90)
            await asyncio.sleep(0.2)

    node.during(work)
    assert node.starts == 1


@pytest.mark.parametrize(
    ("served_s", "pauses"), [(0, ["0.1", "0.2", "0.4"]), (5, ["0.1", "0.1", "0.1"])]
)
def test_an_arbiter_that_fails_is_restarted_with_growing_delays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, served_s: int, pauses: list[str]
) -> None:
    """One that served for long is replaced at once."""
    node = python(tmp_path, FAILS)
    seconds = itertools.count(0, served_s)
    node.arbiter.now = lambda: float(next(seconds))
    node.during(lambda: until_async(lambda: node.starts >= 4))
    said = [text for text in caplog.messages if "arbiter exited" in text]
    assert ["OSError: no space" in text for text in said[:3]] == [True] * 3
    assert [text.rpartition("again_in_s=")[2] for text in said[:3]] == pauses


def test_an_arbiter_that_ignores_the_end_of_its_input_is_killed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before that, without a first heartbeat, too."""
    node = python(tmp_path, IGNORES_EOF, start_s=0.5, leave_s=0.2)
    node.during(lambda: until_async(lambda: node.starts >= 2 and pid(tmp_path) != 0))
    gone(pid(tmp_path))
    assert "killed: no heartbeat for 0.5 s" in caplog.text
    assert any("arbiter killed" in text for text in caplog.messages)
