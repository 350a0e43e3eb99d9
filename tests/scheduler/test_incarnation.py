"""Who a process is, and whom it certainly replaces: the kernel's word."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.incarnation import Incarnation, IncarnationError

_HOLD = """
import sys, time
from pathlib import Path
from scheduler.incarnation import Incarnation
it = Incarnation("here", Path(sys.argv[1]))
print(it.candidate.identity, flush=True)
time.sleep(600)
"""


def test_without_a_directory_nobody_is_replaced() -> None:
    first, second = Incarnation("here"), Incarnation("here")
    assert first.candidate.identity != second.candidate.identity
    assert first.candidate.dead == frozenset()
    first.close()


def test_one_that_was_killed_is_known_to_be_dead_and_one_that_lives_is_not(tmp_path: Path) -> None:
    place = tmp_path / "state"
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(place)], stdout=subprocess.PIPE, text=True
    ) as living:
        assert living.stdout is not None
        name = living.stdout.readline().strip()
        with pytest.raises(IncarnationError, match="another scheduler that runs uses it"):
            Incarnation("here", place)
        living.send_signal(signal.SIGKILL)
        living.wait()
    after = Incarnation("here", place)
    assert after.candidate.dead == {name}
    identity = after.candidate.identity
    after.close()
    again = Incarnation("here", place)
    assert again.candidate.dead == {name, identity}
    again.close()
    for _ in range(20):
        again = Incarnation("here", place)
        again.close()
    assert len(again.candidate.dead) == 8 and name not in again.candidate.dead


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(IncarnationError, match="file"):
        Incarnation("here", tmp_path / "file")
