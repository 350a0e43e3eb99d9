"""The library in the store: by hash, complete or absent, never over an existing file."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest

from contract import forwarder
from nri_plugin.host.store import Store, publish, publish_forwarders
from nri_plugin.policy.refusals import StoreError

ELF = b"\x7fELF one"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "libvgpu.so"
    path.write_bytes(ELF)
    return path


def test_published_under_its_hash(library: Path, tmp_path: Path) -> None:
    store = tmp_path / "a/store"
    path = publish(library, store)
    assert path == store / hashlib.sha256(ELF).hexdigest() / "libvgpu.so"
    assert path.read_bytes() == ELF
    assert path.stat().st_mode & 0o777 == 0o755
    assert [p.name for p in path.parent.iterdir()] == ["libvgpu.so"]


def test_published_again_it_is_the_same_file(library: Path, tmp_path: Path) -> None:
    inode = publish(library, tmp_path / "store").stat().st_ino
    assert publish(library, tmp_path / "store").stat().st_ino == inode


def test_a_release_that_nothing_uses_is_removed(library: Path, tmp_path: Path) -> None:
    directory = tmp_path / "store"
    old, used = (
        publish(_written(library, data), directory) for data in (b"\x7fELF 0", b"\x7fELF used")
    )
    (directory / "notes").mkdir()
    store = Store(directory, _written(library, ELF))
    current = store.current()
    assert store.collect({used.parent.name}) == [old.parent.name]
    assert {path.name for path in directory.iterdir()} == {
        "notes",
        used.parent.name,
        current.parent.name,
    }
    assert store.collect({used.parent.name}) == []


def _written(library: Path, data: bytes) -> Path:
    library.write_bytes(data)
    return library


def test_an_upgrade_stands_beside(library: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "store", library)
    first = store.current()
    library.write_bytes(b"\x7fELF two")
    assert store.current() == first
    assert publish(library, tmp_path / "store") != first
    assert first.read_bytes() == ELF


def test_many_at_once_publish_one_file(library: Path, tmp_path: Path) -> None:
    found: list[int] = []
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        found.append(publish(library, tmp_path / "store").stat().st_ino)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_a_library_that_comes_late_is_found(library: Path, tmp_path: Path) -> None:
    library.unlink()
    store = Store(tmp_path / "store", library)
    with pytest.raises(StoreError, match=r"libvgpu.so: No such file"):
        store.current()
    library.write_bytes(ELF)
    path = store.current()
    path.unlink()
    assert store.current().read_bytes() == ELF


def test_what_cannot_be_published(library: Path, tmp_path: Path) -> None:
    library.write_bytes(b"#!/bin/sh")
    with pytest.raises(StoreError, match="not a shared library"):
        publish(library, tmp_path / "store")
    library.write_bytes(ELF)
    published = publish(library, tmp_path / "store")
    published.write_bytes(b"another program's cp -f")
    with pytest.raises(StoreError, match="has been changed"):
        publish(library, tmp_path / "store")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Not a directory"):
        publish(library, tmp_path / "file")


TEMPLATE = b"\x7fELF " + b"".join(
    b"@" + name + b"@" + b"." * 100 + b"\0" for name in (b"soname", b"library", b"driver")
)


def test_forwarders_are_published_for_both_libraries(library: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "store", library)
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
def test_a_template_that_is_none(template: bytes, tmp_path: Path) -> None:
    path = tmp_path / forwarder.TEMPLATE
    path.write_bytes(template)
    with pytest.raises(StoreError, match=r"template|does not fit"):
        publish_forwarders(path, tmp_path / "store")
