"""Waiting on a real kernel: what ends a wait, and what does not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_plugin.distributor.changes import Changes

LONG_S = 600.0
SHORT_S = 0.2


@pytest.fixture
def changes(tmp_path: Path) -> Iterator[Changes]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    changes = Changes()
    changes.watch([tmp_path, tmp_path / "absent"])
    changes.watch([tmp_path])
    yield changes
    for number, handler in before.items():
        signal.signal(number, handler)


def test_each_change_ends_a_wait(changes: Changes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    for change in (
        lambda: path.write_bytes(b"new"),
        lambda: path.chmod(0o600),
        lambda: path.rename(tmp_path / "other"),
        (tmp_path / "other").unlink,
    ):
        change()
        changes.wait(LONG_S)


def test_the_lock_and_files_in_the_making_do_not(changes: Changes, tmp_path: Path) -> None:
    """Else the distributor, which takes the lock to verify, would verify without end."""
    (tmp_path / ".lock").write_bytes(b"")
    since_s = time.monotonic()
    changes.wait(SHORT_S)
    assert time.monotonic() - since_s >= SHORT_S


def test_a_signal_ends_a_wait(changes: Changes) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    changes.wait(LONG_S)
    changes.pause(LONG_S)
    assert changes.stopped
