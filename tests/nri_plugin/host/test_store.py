"""The library in the store: by hash, complete or absent, never over an existing file."""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
from pathlib import Path

import pytest

from gpuslice.contract import forwarder, names
from nri_plugin.host import releases, tmpfs
from nri_plugin.host.store import Store, keep_mounted, publish_forwarders, read
from nri_plugin.policy.refusals import StoreError
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


def test_only_a_shared_library_is_published_and_never_over_a_file_in_use(
    library: Path, tmp_path: Path
) -> None:
    library.write_bytes(b"#!/bin/sh")
    with pytest.raises(StoreError, match="not a shared library"):
        publish(library, tmp_path / "store")
    library.write_bytes(ELF)
    published = publish(library, tmp_path / "store")
    with published.open("rb") as mapped:
        published.write_bytes(b"another program's cp -f")
        changed = mapped.read()
        publish(library, tmp_path / "store")
        mapped.seek(0)
        assert mapped.read() == changed  # containers keep the file that they map
    assert published.read_bytes() == ELF
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="File exists"):
        publish(library, tmp_path / "file")


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
