"""Only one agent serves at a time, however agents start, exit or are killed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nri_plugin.host.lock import FILE, Lock

HOLD = """
import asyncio, sys
from pathlib import Path
from nri_plugin.host.lock import Lock
asyncio.run(Lock(Path(sys.argv[1]), "pid=old").acquire(print))
print("held", flush=True)
sys.stdin.read()
"""


def test_the_second_agent_names_the_first_and_takes_over_when_it_is_killed(tmp_path: Path) -> None:
    run_dir, said, pipe = tmp_path / "state/run", list[str](), subprocess.PIPE
    lock = Lock(run_dir, "pid=new")
    command = [sys.executable, "-c", HOLD, str(run_dir)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as old:
        assert old.stdout is not None and old.stdout.readline() == "held\n"

        def report(why: str) -> None:
            said.append(why)
            if len(said) == 3:
                old.kill()

        asyncio.run(lock.acquire(report))
    assert set(said) == {"another agent serves this node (pid=old)"}
    assert (run_dir / FILE).read_text() == "pid=new\n"
    lock.release()
    lock.release()
    asyncio.run(Lock(run_dir, "pid=third").acquire(lambda why: pytest.fail(why)))


def test_a_file_that_was_removed_between_open_and_lock_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that opens the name later would lock another file, and serve beside this agent."""
    whole = os.open
    said: list[str] = []

    def open_and_lose(path: Path, flags: int, mode: int = 0o777) -> int:
        descriptor = whole(path, flags, mode)
        if not path.is_dir():
            path.unlink()
            monkeypatch.undo()
        return descriptor

    monkeypatch.setattr(os, "open", open_and_lose)
    asyncio.run(Lock(tmp_path, "pid=new").acquire(said.append))
    assert (len(said) == 1 and "No such file" in said[0]) or "it was removed" in said[0]
    assert (tmp_path / FILE).read_text() == "pid=new\n"
