"""Scratch directories: removed at their end, or by the next one if their process was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tools.scratch import scratch

_USER = """
import signal, sys
from pathlib import Path
from tools.scratch import scratch
with scratch(Path(sys.argv[1]), ".making-") as ours:
    (ours / "much").write_text("x")
    sys.stdout.write(f"{ours}\\n")
    sys.stdout.flush()
    signal.pause()
"""


def test_a_scratch_directory_is_removed_and_moved_files_stay(tmp_path: Path) -> None:
    with scratch(tmp_path / "cache", ".making-") as ours:
        (ours / "made").write_text("x")
        (ours / "made").rename(tmp_path / "cache" / "made")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["made"]


def test_files_of_killed_users_are_removed_and_of_running_ones_kept(tmp_path: Path) -> None:
    users = [
        subprocess.Popen(
            [sys.executable, "-c", _USER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    places = []
    for user in users:
        assert user.stdout is not None
        places.append(Path(user.stdout.readline().strip()))
    killed, living = users
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert (places[0] / "much").exists()
    with scratch(tmp_path, ".making-") as ours:
        assert set(tmp_path.iterdir()) == {places[1], ours}
    living.send_signal(signal.SIGKILL)
    for user in users:
        user.communicate()
