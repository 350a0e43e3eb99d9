"""The distributor's files, whatever fails: every system call, the disk, another distributor."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from contract import names
from nri_plugin.distributor.publication import Origin, Publication, Superseded
from nri_plugin.host import releases
from nri_plugin.policy.refusals import StoreError
from tests.contract.libraries import library

OLD: Final = library(content=b"old" * 1000)
NEW: Final = library(content=b"new" * 9000)
HAMI: Final = library(None, content=b"hami")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "vgpu/store"


def publication(
    data: bytes, store: Path, identity: str = "one", origin: Origin = Origin.GPUSLICE
) -> Publication:
    return Publication(data, origin, store, identity)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def current(store: Path) -> bytes | None:
    """The content of the current release, which must be complete; None: none is current."""
    path = store / names.FILE_CURRENT
    if not path.exists():
        return None
    text = path.read_text()
    data = (store / text.strip() / names.FILE_LIBRARY).read_bytes()
    assert sha256(data) == text.removesuffix("\n")
    return data


def copy(store: Path) -> bytes | None:
    path = store.parent / names.FILE_LIBRARY
    return path.read_bytes() if path.exists() else None


def test_the_files_that_are_written_and_their_modes(store: Path) -> None:
    published = publication(NEW, store)
    assert len(published.lacks()) == 3
    assert len(published.restore()) == 3
    assert not published.lacks()
    assert not published.restore()
    assert current(store) == copy(store) == NEW
    copied, release = store.parent / names.FILE_LIBRARY, store / published.sha256 / "libvgpu.so"
    assert not copied.samefile(release)
    assert {path.stat().st_mode & 0o777 for path in (copied, release)} == {0o755}
    assert (store / names.FILE_CURRENT).stat().st_mode & 0o777 == 0o644
    hidden = [path.name for path in store.parent.rglob(".*")]
    assert hidden == [releases.LOCK]


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/bin/true")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


CHANGES: Final[dict[str, Callable[[Path], object]]] = {
    "overwritten": lambda path: path.write_bytes(HAMI),
    "truncated": lambda path: os.truncate(path, 10),
    "removed": os.unlink,
    "closed": lambda path: path.chmod(0o600),
    "a link": link,
    "a pipe": pipe,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("which", ["release", "copy"])
def test_what_another_program_changes_is_replaced(change: str, which: str, store: Path) -> None:
    published = publication(NEW, store)
    published.restore()
    release = store / published.sha256 / names.FILE_LIBRARY
    path = release if which == "release" else store.parent / names.FILE_LIBRARY
    with path.open("rb") as mapped:
        CHANGES[change](path)
        seen = os.pread(mapped.fileno(), 1 << 20, 0)
        (lacking,) = published.lacks()
        assert lacking.startswith(str(path))
        assert published.restore() == [lacking]
        assert os.pread(mapped.fileno(), 1 << 20, 0) == seen
    assert current(store) == copy(store) == NEW
    assert not path.is_symlink() and path.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("text", ["", "../x", "f" * 64])
def test_a_damaged_current_is_replaced(text: str, store: Path) -> None:
    published = publication(NEW, store)
    published.restore()
    (store / names.FILE_CURRENT).write_text(text)
    assert len(published.restore()) == 1
    assert current(store) == NEW


def test_the_last_started_is_in_charge(store: Path) -> None:
    first, second = publication(OLD, store, "first"), publication(NEW, store, "second")
    first.restore()
    second.restore()
    written = (store / names.FILE_CURRENT).stat().st_ino
    for _ in range(3):
        with pytest.raises(Superseded, match="second"):
            first.restore()
        assert not second.restore()
    assert (store / names.FILE_CURRENT).stat().st_ino == written
    (store.parent / names.FILE_LIBRARY).unlink()
    with pytest.raises(Superseded):
        first.restore()
    assert copy(store) is None
    second.restore()
    assert current(store) == copy(store) == NEW
    publication(OLD, store, "first, restarted").restore()
    assert current(store) == copy(store) == OLD


def test_hamis_library_is_copied_and_not_current(store: Path) -> None:
    publication(OLD, store).restore()
    hami = publication(HAMI, store, "hami", Origin.HAMI)
    assert len(hami.lacks()) == 2
    hami.restore()
    assert (current(store), copy(store), list(hami.lacks())) == (None, HAMI, [])
    assert not (store / hami.sha256).exists()


def test_a_lock_that_another_process_holds_is_an_error(store: Path) -> None:
    with releases.locked(store), pytest.raises(StoreError, match="another process holds the lock"):
        publication(NEW, store).restore()


# --- at each system call


@pytest.fixture
def shm() -> Iterator[Path]:
    """A directory in memory, where fsync takes no time."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


CALLS: Final = (
    *("open", "mkdir", "write", "pwrite", "fchmod", "fsync", "posix_fadvise"),
    *("rename", "unlink"),
)


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
                if name in ("write", "pwrite"):
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2], *arguments[2:])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **more)

        return call

    for name in CALLS:
        setattr(os, name, wrapped(name, getattr(os, name)))
    return lambda: left <= 0


DONE, NO_SPACE, NOT_INTERRUPTED, FAILED_OTHERWISE = range(4)


def child(number: int, how: str, published: Publication) -> int:
    """Restore in a process of its own; return how that ended."""
    pid = os.fork()
    if pid == 0:
        code = FAILED_OTHERWISE
        try:
            interrupted = interrupt(number, how)
            published.restore()
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
            publication(before, store, "before").restore()
        ends.append(child(number, how, publication(NEW, store)))
        assert current(store) in (before, NEW), number
        assert copy(store) in (before, NEW), number
        for release in store.glob("*/libvgpu.so"):
            assert release.parent.name == sha256(release.read_bytes()), number
        after = publication(NEW, store, "after")
        after.restore()
        assert current(store) == copy(store) == NEW
        hidden = [path.name for path in store.parent.rglob(".*")]
        assert hidden == [releases.LOCK]
        if ends[-1] == NOT_INTERRUPTED:
            break
    # An error while a file is verified means that it is written again.
    expected = NO_SPACE if how == "ENOSPC" else -signal.SIGKILL
    assert set(ends) <= {expected, DONE, NOT_INTERRUPTED}
    assert ends.count(expected) > 20


# --- on a real disk


@contextmanager
def mounted(place: Path, options: str) -> Iterator[None]:
    libc = ctypes.CDLL(None, use_errno=True)
    place.mkdir(parents=True)
    assert libc.mount(b"vgpu", bytes(place), b"tmpfs", 0, options.encode()) == 0
    try:
        yield
    finally:
        assert libc.umount2(bytes(place), 2) == 0


@pytest.mark.node
def test_a_full_disk_keeps_what_was_there(store: Path) -> None:
    with mounted(store.parent, "size=512k"):
        publication(OLD, store).restore()
        (store.parent / "ballast").write_bytes(b"")
        new = publication(NEW, store)
        with (store.parent / "ballast").open("wb", buffering=0) as file, pytest.raises(OSError):
            while True:
                file.write(bytes(4096))
        with pytest.raises(StoreError, match=r"libvgpu\.so\.new: No space left on device"):
            new.restore()
        assert len(new.lacks()) == 3
        assert current(store) == copy(store) == OLD
        assert not [*store.parent.rglob("*.new")]
        (store.parent / "ballast").unlink()
        new.restore()
        assert current(store) == copy(store) == NEW


@pytest.mark.node
def test_a_read_only_file_system_is_an_error_until_it_is_writable(store: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with mounted(store.parent, "size=512k"):
        new = publication(NEW, store)
        assert libc.mount(b"", bytes(store.parent), b"", 32 | 1, None) == 0  # MS_REMOUNT|MS_RDONLY
        with pytest.raises(StoreError, match="Read-only file system"):
            new.restore()
        assert len(new.lacks()) == 3
        assert libc.mount(b"", bytes(store.parent), b"", 32, None) == 0
        new.restore()
        assert not new.lacks()
