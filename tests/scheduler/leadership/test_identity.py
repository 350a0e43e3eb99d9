"""The identity of a process, and of predecessors that have certainly exited, by a file lock."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.service import IdentityError, identity

_HOLD = """
import sys, time
from pathlib import Path
from scheduler.service import identity
with identity("here", Path(sys.argv[1])) as me:
    print(me.identity, flush=True)
    time.sleep(600)
"""


def test_without_a_directory_no_process_is_replaced() -> None:
    with identity("here") as first, identity("here") as second:
        assert first.identity != second.identity
        assert first.exited == frozenset()


def test_a_killed_process_is_replaced_and_one_that_runs_is_not(tmp_path: Path) -> None:
    place = tmp_path / "state"
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(place)], stdout=subprocess.PIPE, text=True
    ) as living:
        assert living.stdout is not None
        name = living.stdout.readline().strip()
        with (
            pytest.raises(IdentityError, match="another scheduler that runs uses it"),
            identity("here", place),
        ):
            pass
        living.send_signal(signal.SIGKILL)
        living.wait()
    with identity("here", place) as after:
        assert after.exited == {name}
    with identity("here", place) as again:
        assert again.exited == {name, after.identity}
    for _ in range(20):
        with identity("here", place) as last:
            pass
    assert len(last.exited) == 8 and name not in last.exited


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(IdentityError, match="file"), identity("here", tmp_path / "file"):
        pass
