"""The library in the store: by hash, complete or absent, never over an existing file."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from gpuslice.contract import forwarder, names
from nri_plugin.host import releases, tmpfs
from nri_plugin.host.store import Store, keep_mounted, publish_forwarders, read
from nri_plugin.policy.refusals import StoreError
from tests.contract.libraries import library as built
from tests.nri_plugin.objects import plain_store

ELF = b"\x7fELF one"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "libvgpu.so"
    path.write_bytes(ELF)
    return path


def publish(library: Path, store: Path) -> Path:
    return releases.publish(read(library), names.FILE_LIBRARY, store)


def test_published_under_its_hash(library: Path, tmp_path: Path) -> None:
    store = tmp_path / "a/store"
    path = publish(library, store)
    assert path == store / hashlib.sha256(ELF).hexdigest() / "libvgpu.so"
    assert path.read_bytes() == ELF
    assert path.stat().st_mode & 0o777 == 0o755
    assert [p.name for p in path.parent.iterdir()] == ["libvgpu.so"]


def test_a_release_that_nothing_uses_is_removed(library: Path, tmp_path: Path) -> None:
    directory = tmp_path / "store"
    old, used = (
        publish(_written(library, data), directory) for data in (b"\x7fELF 0", b"\x7fELF used")
    )
    (directory / "notes").mkdir()
    store = plain_store(directory, _written(library, ELF))
    own = store.own()
    mounts = {str(used), "/etc/hosts"}
    assert not store.collect(lambda: None)
    with releases.locked(directory):
        assert not store.collect(lambda: mounts)
    assert store.collect(lambda: mounts) == [old.parent.name]
    kept = {"notes", ".lock", used.parent.name, own.parent.name}
    assert {path.name for path in directory.iterdir()} == kept
    assert not store.collect(lambda: mounts)
    assert store.collect(tuple) == [used.parent.name]


def test_the_releases_of_other_agents_are_kept(library: Path, tmp_path: Path) -> None:
    directory = tmp_path / "store"
    beside = _written(tmp_path / "other.so", b"\x7fELF other agent")
    beside.with_name(forwarder.TEMPLATE).write_bytes(TEMPLATE)
    other = plain_store(directory, beside)
    kept = {other.own(), *other.forwarders().values()}
    store = plain_store(directory, library)
    kept.add(store.own())
    assert not store.collect(tuple)
    assert all(path.is_file() for path in kept)


def _written(library: Path, data: bytes) -> Path:
    library.write_bytes(data)
    return library


def test_a_library_that_comes_late_is_found(library: Path, tmp_path: Path) -> None:
    library.unlink()
    store = plain_store(tmp_path / "store", library)
    with pytest.raises(StoreError, match=r"libvgpu.so: No such file"):
        store.own()
    library.write_bytes(ELF)
    path = store.own()
    path.unlink()
    assert store.own().read_bytes() == ELF


def test_only_a_shared_library_is_published_into_a_directory(library: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="File exists"):
        publish(library, tmp_path / "file")
    library.write_bytes(b"#!/bin/sh")
    with pytest.raises(StoreError, match="not a shared library"):
        publish(library, tmp_path / "store")


TEMPLATE = b"\x7fELF " + b"".join(
    b"@" + name + b"@" + b"." * 100 + b"\0" for name in (b"soname", b"library", b"driver")
)


def test_forwarders_are_published_for_both_libraries(library: Path, tmp_path: Path) -> None:
    store = plain_store(tmp_path / "store", library)
    with pytest.raises(StoreError, match=r"forwarder\.so: No such file"):
        store.forwarders()
    library.with_name(forwarder.TEMPLATE).write_bytes(TEMPLATE)
    published = store.forwarders()
    assert list(published) == ["libcuda.so.1", "libnvidia-ml.so.1"]
    for soname, path in published.items():
        data = path.read_bytes()
        names = [name for name in data.removeprefix(b"\x7fELF ").split(b"\0") if name]
        assert len(data) == len(TEMPLATE)
        assert path.name == soname
        assert b" ".join(names).decode() == (
            f"{soname} /.gpuslice/libvgpu.so /.gpuslice/driver/{soname}"
        )
    assert store.forwarders() == published


@pytest.mark.parametrize(
    "template",
    [ELF, TEMPLATE + TEMPLATE, TEMPLATE.replace(b"." * 100, b"...")],
    ids=["no blanks", "twice", "too short"],
)
def test_a_malformed_template_of_a_forwarder_is_refused(template: bytes, tmp_path: Path) -> None:
    path = tmp_path / forwarder.TEMPLATE
    path.write_bytes(template)
    with pytest.raises(StoreError, match=r"template|does not fit"):
        publish_forwarders(path, tmp_path / "store")


# --- a release and the distributor's copy, whatever fails: every system call, the disk

OLD: Final = built(content=b"old" * 1000)
NEW: Final = built(content=b"new" * 9000)


def put(data: bytes, store: Path) -> Path:
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
    release = put(NEW, store)
    path = release if which == "release" else copy(store)
    with path.open("rb") as mapped:
        CHANGES[change](path)
        seen = os.pread(mapped.fileno(), 1 << 20, 0)
        assert not releases.holds(path, NEW)
        put(NEW, store)
        assert os.pread(mapped.fileno(), 1 << 20, 0) == seen
    assert release.read_bytes() == content(store) == NEW
    assert not path.is_symlink() and path.stat().st_mode & 0o777 == 0o755


def test_a_lock_that_another_process_holds_is_an_error(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with releases.locked(store), pytest.raises(StoreError, match="another process holds the lock"):
        put(NEW, store)


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
            put(NEW, store)
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
            put(before, store)
        ends.append(child(number, how, store))
        assert content(store) in (before, NEW), number
        for release in store.glob("*/libvgpu.so"):
            found = release.read_bytes()
            assert release == releases.place(found, names.FILE_LIBRARY, store), number
        assert put(NEW, store).read_bytes() == content(store) == NEW
        assert [path.name for path in store.parent.rglob(".*")] == [releases.LOCK]
        if ends[-1] == NOT_INTERRUPTED:
            break
    # An error while a file is verified means that it is written again.
    expected = NO_SPACE if how == "ENOSPC" else -signal.SIGKILL
    assert set(ends) <= {expected, DONE, NOT_INTERRUPTED}
    assert ends.count(expected) > 14


# --- on a real file system


@pytest.mark.node
def test_the_store_is_one_file_system_that_allows_execution(library: Path, tmp_path: Path) -> None:
    """Also where the run directory does not, and for an agent that follows."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    tmpfs.mount(run_dir, 1 << 20, 100)
    try:
        subprocess.run(["mount", "-o", "remount,noexec", run_dir], check=True)
        directory = run_dir / names.DIR_STORE
        threads = [threading.Thread(target=keep_mounted, args=(directory,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        (line,) = [each.split() for each in lines if each.split()[4] == str(directory)]
        assert {"nosuid", "nodev"} <= {*line[5].split(",")} and "noexec" not in line[5]
        program = directory / "program"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        keep_mounted(directory)
        assert subprocess.run([program], check=False).returncode == 0
        path = Store(directory, library).own()
        assert Store(directory, library).own() == path
        tmpfs.clear(directory)
        store = Store(directory, library)
        assert store.own() == path, "an uninstallation removed it meanwhile"
        assert os.path.ismount(directory)
        tmpfs.clear(directory)
    finally:
        tmpfs.clear(run_dir)
