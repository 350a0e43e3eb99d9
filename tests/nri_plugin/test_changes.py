"""What the kernel tells of files that were looked at, on a real file system."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from nri_plugin.changes import Changes


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "card.yaml").write_text("one")
    (tmp_path / "elsewhere").write_text("two")
    (tmp_path / "specs" / "link.yaml").symlink_to(tmp_path / "elsewhere")
    return tmp_path


def watching(place: Path) -> Changes:
    changes = Changes()
    specs = place / "specs"
    changes.watch([specs, specs / "card.yaml", specs / "link.yaml", place / "late" / "deep"])
    assert changes.none()
    return changes


def _replaced(place: Path) -> None:
    (place / "new").write_text("three")
    (place / "new").rename(place / "specs" / "card.yaml")


CHANGES: dict[str, Callable[[Path], object]] = {
    "written in place": lambda place: (place / "specs" / "card.yaml").write_text("four"),
    "replaced": _replaced,
    "removed": lambda place: (place / "specs" / "card.yaml").unlink(),
    "renamed": lambda place: (place / "specs" / "card.yaml").rename(place / "specs" / "other"),
    "another beside it": lambda place: (place / "specs" / "more.yaml").touch(),
    "mode": lambda place: (place / "specs" / "card.yaml").chmod(0o600),
    "behind a link": lambda place: (place / "elsewhere").write_text("five"),
    "the directory is renamed": lambda place: (place / "specs").rename(place / "gone"),
    "what was missing": lambda place: (place / "late").mkdir(),
    "what was missing, moved there": lambda place: (place / "elsewhere").rename(place / "late"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_until_it_is_watched_anew(place: Path, change: str) -> None:
    changes = watching(place)
    CHANGES[change](place)
    assert not changes.none()
    assert not changes.none()
    changes.watch([place])
    assert changes.none()


def test_what_happens_beside_is_none(place: Path) -> None:
    changes = watching(place)
    (place / "beside").mkdir()
    (place / "beside").rmdir()
    (place / "specs" / "card.yaml").read_text()
    assert changes.none()
    changes.watch([place / "late"])
    (place / "specs" / "card.yaml").write_text("of a watch before")
    assert changes.none()


def test_what_is_missing_in_a_directory_that_matters_itself(place: Path) -> None:
    changes = Changes()
    changes.watch([place / "late", place])
    (place / "anything").touch()
    assert not changes.none()


def test_a_path_that_cannot_be_watched_counts_as_changed(place: Path) -> None:
    loop = place / "loop"
    loop.symlink_to(loop)
    changes = Changes()
    changes.watch([place, loop])
    assert not changes.none()
    changes.watch([loop / "below"])
    assert not changes.none()


def test_more_than_the_kernel_keeps_counts_as_changed(place: Path) -> None:
    changes = watching(place)
    changes.watch([place / "late"])
    kept = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if kept > 1 << 16:
        pytest.skip("this kernel keeps too many")
    for number in range(kept + 2):  # names in turn: like events in a row are one
        os.close(os.open(place / f"n{number % 2}", os.O_CREAT))
        os.unlink(place / f"n{number % 2}")
    assert not changes.none()


def test_without_the_kernel_s_help_all_counts_as_changed(place: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        changes = Changes()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    changes.watch([place])
    assert not changes.none()
    changes.watch([])
    assert changes.none()
