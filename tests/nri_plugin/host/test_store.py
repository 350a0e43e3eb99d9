"""The store names each library by its hash, has only complete files, and overwrites no file."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final
from unittest.mock import Mock

import pytest

from gpuslice.contract import forwarder, names
from nri_plugin.host import releases, tmpfs
from nri_plugin.host.store import Store, keep_mounted, read
from nri_plugin.policy.refusals import StoreError
from tests.contract.libraries import library as built
from tests.nri_plugin.host import interruptions
from tests.nri_plugin.host.interruptions import KILLED, REPORTED, interrupted
from tests.nri_plugin.objects import plain_store

ELF: Final = b"\x7fELF one"
TEMPLATE: Final = b"\x7fELF " + b"".join(
    b"@" + name + b"@" + b"." * 100 + b"\0" for name in (b"soname", b"library", b"driver")
)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return _written(tmp_path / "libvgpu.so", ELF)


def _written(library: Path, data: bytes) -> Path:
    library.write_bytes(data)
    return library


def publish(library: Path, store: Path) -> Path:
    return releases.publish(read(library), names.FILE_LIBRARY, store)


def test_a_release_that_no_container_and_no_agent_uses_is_removed(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "store"
    old, used = (publish(_written(library, b"\x7fELF " + n), directory) for n in (b"0", b"used"))
    (directory / "notes").mkdir()
    _written(tmp_path / forwarder.TEMPLATE, TEMPLATE)
    other = plain_store(directory, _written(tmp_path / "other.so", b"\x7fELF other agent"))
    store = plain_store(directory, _written(library, ELF))
    own = {store.own(), other.own(), *other.forwarders().values()}
    mounts = {str(used), "/etc/hosts"}
    assert not store.collect(lambda: None)
    with releases.locked(directory):  # as another process does
        assert not store.collect(lambda: mounts)
        with pytest.raises(StoreError, match="another process holds the lock"):
            put(NEW, directory)
    assert store.collect(lambda: mounts) == [old.parent.name]
    kept = {"notes", ".lock", used.parent.name, *(path.parent.name for path in own)}
    assert {*os.listdir(directory)} == kept
    assert not store.collect(lambda: mounts)
    with monkeypatch.context() as broken:
        broken.setattr(releases, "remove", Mock(side_effect=OSError))
        assert not store.collect(tuple)
    assert store.collect(tuple) == [used.parent.name]
    assert all(path.is_file() for path in own)


def test_a_library_that_comes_late_is_found(library: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="File exists"):
        publish(library, _written(tmp_path / "file", b""))
    library.unlink()
    store = plain_store(tmp_path / "store", library)
    with pytest.raises(StoreError, match=r"libvgpu.so: No such file"):
        store.own()
    _written(library, b"#!/bin/sh")
    with pytest.raises(StoreError, match="not a shared library"):
        store.own()
    _written(library, ELF)
    store.own().unlink()
    assert store.own().read_bytes() == ELF


def test_forwarders_are_published_for_both_libraries(library: Path, tmp_path: Path) -> None:
    store = plain_store(tmp_path / "store", library)
    template = tmp_path / forwarder.TEMPLATE
    with pytest.raises(StoreError, match=r"forwarder\.so: No such file"):
        store.forwarders()
    for malformed in (ELF, TEMPLATE + TEMPLATE, TEMPLATE.replace(b"." * 100, b"...")):
        _written(template, malformed)
        with pytest.raises(StoreError, match=r"not a template|does not fit"):
            store.forwarders()
    _written(template, TEMPLATE)
    published = store.forwarders()
    assert list(published) == ["libcuda.so.1", "libnvidia-ml.so.1"]
    for soname, path in published.items():
        data = path.read_bytes()
        filled = [each.decode() for each in data.removeprefix(b"\x7fELF ").split(b"\0") if each]
        assert filled == [soname, "/.gpuslice/libvgpu.so", f"/.gpuslice/driver/{soname}"]
        assert (path.name, len(data)) == (soname, len(TEMPLATE))
    assert store.forwarders() is published
    path.unlink()
    assert store.forwarders() == published and path.is_file()


OLD: Final = built(content=b"old" * 1000)
NEW: Final = built(content=b"new" * 9000)


def put(data: bytes, store: Path) -> Path:
    """Publish as the agent and the distributor do. Return the release."""
    release = releases.publish(data, names.FILE_LIBRARY, store)
    if not releases.holds(copy(store), data):
        releases.replace(copy(store), data)
    return release


def copy(store: Path) -> Path:
    return store.parent / "vgpu/libvgpu.so"


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
    assert release == store / hashlib.sha256(NEW).hexdigest() / "libvgpu.so"
    path = release if which == "release" else copy(store)
    with path.open("rb") as mapped:
        CHANGES[change](path)
        seen = os.pread(mapped.fileno(), 1 << 20, 0)
        assert not releases.holds(path, NEW)
        put(NEW, store)
        assert os.pread(mapped.fileno(), 1 << 20, 0) == seen
    assert release.read_bytes() == copy(store).read_bytes() == NEW
    assert os.listdir(release.parent) == ["libvgpu.so"]
    assert not path.is_symlink()
    paths = (path, path.parent, store, store / releases.LOCK)
    assert [each.stat().st_mode & 0o777 for each in paths] == [0o755, 0o755, 0o755, 0o600]


@pytest.fixture
def shm() -> Iterator[Path]:
    """Yield a directory in memory, where fsync takes no time."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.mark.parametrize(("error", "end"), [(0, KILLED), (errno.ENOSPC, REPORTED)])
@pytest.mark.parametrize("before", [None, OLD], ids=["first", "upgrade"])
def test_interrupted_at_each_call(error: int, end: int, before: bytes | None, shm: Path) -> None:
    ends = []
    for number in range(1, 100):
        store = shm / str(number) / "store"
        if before is not None:
            put(before, store)
        ends.append(interrupted(partial(put, NEW, store), number, error))
        found = copy(store).read_bytes() if copy(store).exists() else None
        assert found in (before, NEW), number
        for release in store.glob("*/libvgpu.so"):
            place = releases.place(release.read_bytes(), names.FILE_LIBRARY, store)
            assert release == place, number
        assert put(NEW, store).read_bytes() == copy(store).read_bytes() == NEW
        assert [path.name for path in store.parent.rglob(".*")] == [releases.LOCK]
        if ends[-1] == interruptions.NOT_INTERRUPTED:
            break
    # A file is written again where its verification fails with an error.
    assert set(ends) <= {end, interruptions.DONE, interruptions.NOT_INTERRUPTED}
    assert ends.count(end) > 14


@pytest.mark.node
def test_the_store_is_one_file_system_that_allows_execution(library: Path, tmp_path: Path) -> None:
    """The run directory forbids execution. A second agent does not mount the store again."""
    run_dir = tmp_path / "run"
    directory = run_dir / names.DIR_STORE
    keep_mounted(directory)
    assert run_dir.stat().st_mode & 0o777 == 0o700
    tmpfs.clear(directory)
    tmpfs.mount(run_dir, 1 << 20, 100)
    try:
        subprocess.run(["mount", "-o", "remount,noexec", run_dir], check=True)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(keep_mounted, [directory] * 8))
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        (line,) = [each.split() for each in lines if each.split()[4] == str(directory)]
        assert {"nosuid", "nodev"} <= {*line[5].split(",")} and "noexec" not in line[5]
        program = _written(directory / "program", b"#!/bin/sh\n")
        program.chmod(0o755)
        keep_mounted(directory)
        assert subprocess.run([program], check=False).returncode == 0
        path = Store(directory, library).own()
        store = Store(directory, library)
        assert store.own() == path
        tmpfs.clear(directory)
        assert store.own() == path, "an uninstallation removed it meanwhile"
        assert os.path.ismount(directory)
    finally:
        tmpfs.clear(directory)
        tmpfs.clear(run_dir)
