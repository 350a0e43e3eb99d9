"""The directory of bookings: its lock, odd files in it, and other users."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from gpuslice.gpu.bookings import Bookings, BookingsError, Part, started_ticks
from tests.bookings.making import CAPACITY, A, booking, silent
from tests.bookings.making import bookings as bookings
from tests.bookings.making import proc as proc
from tests.support import ROOT


@contextmanager
def stuck(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def test_a_stuck_lock_is_an_error(tmp_path: Path) -> None:
    pauses: list[float] = []
    directory = tmp_path / "bookings"
    bookings = Bookings(directory, pause=pauses.append)
    with bookings.locked():
        pass
    with stuck(directory), pytest.raises(BookingsError) as raised, bookings.locked():
        pass
    assert str(raised.value) == f"{directory}: locked by another process for 10 s"
    assert sum(pauses) == pytest.approx(10)
    with bookings.locked():
        pass


def test_a_lock_that_becomes_free_is_taken(tmp_path: Path) -> None:
    with ExitStack() as held:
        directory = tmp_path / "bookings"
        bookings = Bookings(directory, pause=lambda _: held.close())
        with bookings.locked():
            pass
        held.enter_context(stuck(directory))
        with bookings.locked():
            pass


GOOD = asdict(booking("odd", Part(A, 1, 0)))
ODD: Mapping[str, object] = {
    "no JSON": "{",
    "no table": "[]",
    "nothing": "{}",
    "no number": {**GOOD, "parts": [{**GOOD["parts"][0], "core_percent": "many"}]},
    "infinite": json.dumps(GOOD).replace('"memory_bytes": 1', '"memory_bytes": Infinity'),
    "kind": {**GOOD, "kind": ["program"]},
    "deep": "[" * 50_000,
}


@pytest.mark.parametrize("content", ODD.values(), ids=ODD)
def test_odd_content_is_left_out_with_a_warning(
    bookings: Bookings, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: object
) -> None:
    with bookings.locked():
        bookings.book(booking("good", Part(A, 1, 0)), CAPACITY, silent)
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / "bookings" / "odd").write_text(text)
        assert [each.key for each in bookings.live(silent)] == ["good"]
    assert f"{tmp_path}/bookings/odd is not a booking: " in caplog.text


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_what_is_no_file_is_left_out_with_a_warning(
    bookings: Bookings, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    odd = tmp_path / "bookings" / "odd"
    with bookings.locked():
        bookings.book(booking("good", Part(A, 1, 0)), CAPACITY, silent)
        if kind == "link":
            odd.symlink_to("good")
        elif kind == "pipe":
            os.mkfifo(odd)
        else:
            odd.mkdir()
        assert [each.key for each in bookings.live(silent)] == ["good"]
    assert f"{odd} is not a booking: " in caplog.text


def test_further_fields_of_a_later_version_are_ignored(bookings: Bookings, tmp_path: Path) -> None:
    with bookings.locked():
        parts = [{**each, "more": 1} for each in GOOD["parts"]]
        text = json.dumps({**GOOD, "more": 1, "parts": parts, "key": "other"})
        (tmp_path / "bookings" / "odd").write_text(text)
        assert bookings.live(silent) == [booking("odd", Part(A, 1, 0))]


def test_a_file_that_was_not_completed_is_removed(bookings: Bookings, tmp_path: Path) -> None:
    with bookings.locked():
        (tmp_path / "bookings" / ".web").write_text("{")
        bookings.book(booking("web", Part(A, 1, 0)), CAPACITY, silent)
    assert os.listdir(tmp_path / "bookings") == ["web"]


def test_a_directory_that_not_all_users_may_use_is_refused(tmp_path: Path) -> None:
    bookings = Bookings(tmp_path, pause=lambda _: None)
    with pytest.raises(BookingsError, match="invalid mode 0700: must be 1777"), bookings.locked():
        pass
    (tmp_path / "real").mkdir(0o1777)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for name in ("link", "absent/bookings"):
        with (
            pytest.raises(BookingsError, match=f"^{tmp_path / name}: "),
            Bookings(tmp_path / name).locked(),
        ):
            pass


UNPRIVILEGED = """
import os, sys
from dataclasses import replace
from pathlib import Path
from gpuslice.gpu.bookings import *
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
os.umask(0o77)
bookings = Bookings(Path(sys.argv[1]))
own = Booking("own", "mine", (Part("GPU-a", 2, 0),), os.getpid(), started_ticks(os.getpid()),
              "program", "/")
with bookings.locked():
    print([each.key for each in bookings.live(lambda: None)])
    try:
        bookings.book(replace(own, parts=(Part("GPU-a", 3, 0),)), {"GPU-a": 4}, lambda: None)
    except FullError as error:
        print(error)
    bookings.book(own, {"GPU-a": 4}, lambda: None)
    try:
        bookings.free("of-root")
    except PermissionError:
        print("kept")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to start programs of two users")
def test_users_count_each_others_bookings() -> None:
    """The user cannot remove root's dead booking, which does not count. Root removes the user's."""
    with tempfile.TemporaryDirectory() as name, umask(0o77):
        os.chmod(name, 0o755)
        directory = Path(name) / "bookings"
        root = booking("of-root", Part(A, 2, 0), pid=os.getpid(), name="root")
        root = replace(root, started_ticks=started_ticks(os.getpid()) or 0)
        bookings = Bookings(directory)
        with bookings.locked():
            bookings.book(root, {A: 4}, silent)
            bookings.book(booking("dead", Part(A, 1, 0), pid=os.getpid()), {A: 4}, silent)
        command = [sys.executable, "-c", UNPRIVILEGED, str(directory)]
        done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True)
        assert done.stdout.splitlines() == [
            "['of-root']",
            "--memory: invalid value 3B: must be at most 0B, what is free of GPU-a:"
            f" pid {os.getpid()} (root) has 0B",
            "kept",
        ]
        assert sorted(os.listdir(directory)) == ["dead", "of-root", "own"]
        assert {each.stat().st_mode & 0o777 for each in directory.iterdir()} == {0o644}
        with bookings.locked():
            assert [each.key for each in bookings.live(silent)] == ["of-root"]
        assert os.listdir(directory) == ["of-root"]


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
