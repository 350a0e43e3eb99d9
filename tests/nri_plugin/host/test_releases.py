"""A release of the library and the copy, whatever fails: every system call, the disk."""

from __future__ import annotations

import errno
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from gpuslice.contract import names
from nri_plugin.host import releases
from nri_plugin.policy.refusals import StoreError
from tests.contract.libraries import library

OLD: Final = library(content=b"old" * 1000)
NEW: Final = library(content=b"new" * 9000)


def publish(data: bytes, store: Path) -> Path:
    """Publish as the agent and the distributor do. Returns the release."""
    release = releases.publish(data, names.FILE_LIBRARY, store)
    if not releases.holds(copy(store), data):
        releases.replace(copy(store), data)
    return release


def copy(store: Path) -> Path:
    return store.parent / "vgpu/libvgpu.so"


def content(store: Path) -> bytes | None:
    return copy(store).read_bytes() if copy(store).exists() else None


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/bin/true")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


CHANGES: Final[dict[str, Callable[[Path], object]]] = {
    "overwritten": lambda path: path.write_bytes(OLD),
    "truncated": lambda path: os.truncate(path, 10),
    "removed": os.unlink,
    "closed": lambda path: path.chmod(0o600),
    "a link": link,
    "a pipe": pipe,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("which", ["release", "copy"])
def test_what_another_program_changes_is_replaced(change: str, which: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    release = publish(NEW, store)
    path = release if which == "release" else copy(store)
    with path.open("rb") as mapped:
        CHANGES[change](path)
        seen = os.pread(mapped.fileno(), 1 << 20, 0)
        assert not releases.holds(path, NEW)
        publish(NEW, store)
        assert os.pread(mapped.fileno(), 1 << 20, 0) == seen
    assert release.read_bytes() == content(store) == NEW
    assert not path.is_symlink() and path.stat().st_mode & 0o777 == 0o755


def test_a_lock_that_another_process_holds_is_an_error(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with releases.locked(store), pytest.raises(StoreError, match="another process holds the lock"):
        publish(NEW, store)


# --- at each system call


@pytest.fixture
def shm() -> Iterator[Path]:
    """A directory in memory, where fsync takes no time."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


CALLS: Final = ("open", "mkdir", "write", "fchmod", "fsync", "posix_fadvise", "rename", "unlink")


def interrupt(number: int, how: str) -> Callable[[], bool]:
    """Make the `number`-th system call of this process fail, or kill it there, half-way through a
    write. Returns a function that reports whether that happened."""
    left = number

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                if how == "ENOSPC":
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if name == "write":
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **more)

        return call

    for name in CALLS:
        setattr(os, name, wrapped(name, getattr(os, name)))
    return lambda: left <= 0


DONE, NO_SPACE, NOT_INTERRUPTED, FAILED_OTHERWISE = range(4)


def child(number: int, how: str, store: Path) -> int:
    """Publish in a process of its own; return how that ended."""
    pid = os.fork()
    if pid == 0:
        code = FAILED_OTHERWISE
        try:
            interrupted = interrupt(number, how)
            publish(NEW, store)
            code = DONE if interrupted() else NOT_INTERRUPTED
        except StoreError as error:
            code = NO_SPACE if "No space left on device" in str(error) else FAILED_OTHERWISE
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("how", ["killed", "ENOSPC"])
@pytest.mark.parametrize("before", [None, OLD], ids=["first", "upgrade"])
def test_interrupted_at_each_system_call(how: str, before: bytes | None, shm: Path) -> None:
    ends = []
    for number in range(1, 100):
        store = shm / str(number) / "store"
        if before is not None:
            publish(before, store)
        ends.append(child(number, how, store))
        assert content(store) in (before, NEW), number
        for release in store.glob("*/libvgpu.so"):
            found = release.read_bytes()
            assert release == releases.place(found, names.FILE_LIBRARY, store), number
        assert publish(NEW, store).read_bytes() == content(store) == NEW
        assert [path.name for path in store.parent.rglob(".*")] == [releases.LOCK]
        if ends[-1] == NOT_INTERRUPTED:
            break
    # An error while a file is verified means that it is written again.
    expected = NO_SPACE if how == "ENOSPC" else -signal.SIGKILL
    assert set(ends) <= {expected, DONE, NOT_INTERRUPTED}
    assert ends.count(expected) > 14


# --- on a real file system
