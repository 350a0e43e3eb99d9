"""Archives: what OCI asks for, shared layers once, a key that follows the content."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

from simgpu.lab.images import Image, ImageError, Layer, archive
from simgpu.lab.packing import own_image, reference


def _images(text: bytes = b"one") -> list[Image]:
    base, top = Layer(), Layer()
    base.add_bytes("/deep/in/file", text, 0o4755)
    base.add_link("/link", "deep")
    top.add_directory("/tmp", 0o1777)
    return [Image("local/a:1", [base], ["/deep/in/file"]), Image("local/b:1", [base, top])]


def _read(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        files = [member for member in tar.getmembers() if member.isfile()]
        return {m.name: f.read() for m in files if (f := tar.extractfile(m)) is not None}


def _blob(files: dict[str, bytes], descriptor: dict[str, Any]) -> bytes:
    data = files["blobs/" + descriptor["digest"].replace(":", "/")]
    assert len(data) == descriptor["size"]
    assert hashlib.sha256(data).hexdigest() == descriptor["digest"].removeprefix("sha256:")
    return data


def test_every_descriptor_leads_to_its_blob(tmp_path: Path) -> None:
    files = _read(archive(_images(), tmp_path))
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads(files["index.json"])
    names = [m["annotations"]["io.containerd.image.name"] for m in index["manifests"]]
    assert names == ["local/a:1", "local/b:1"]
    for described in index["manifests"]:
        manifest = json.loads(_blob(files, described))
        config = json.loads(_blob(files, manifest["config"]))
        assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]
        for layer in manifest["layers"]:
            _blob(files, layer)
    assert len([name for name in files if name.startswith("blobs/")]) == 6


def test_modes_links_and_parents(tmp_path: Path) -> None:
    files = _read(archive(_images(), tmp_path))
    layers = []
    for name, data in files.items():
        if data[257:262] == b"ustar":
            (tmp_path / "layer.tar").write_bytes(data)
            with tarfile.open(tmp_path / "layer.tar") as tar:
                layers.append({m.name: (m.mode, m.type, m.linkname) for m in tar.getmembers()})
            assert name.startswith("blobs/")
    assert {
        "deep": (0o755, tarfile.DIRTYPE, ""),
        "deep/in": (0o755, tarfile.DIRTYPE, ""),
        "deep/in/file": (0o4755, tarfile.REGTYPE, ""),
        "link": (0o777, tarfile.SYMTYPE, "deep"),
    } in layers
    assert {"tmp": (0o1777, tarfile.DIRTYPE, "")} in layers


def test_equal_content_is_packed_once(tmp_path: Path) -> None:
    first = archive(_images(), tmp_path)
    inode = first.stat().st_ino
    assert archive(_images(), tmp_path) == first
    assert first.stat().st_ino == inode
    assert archive(_images(b"two"), tmp_path) != first


def test_the_cache_keeps_the_newest_few(tmp_path: Path) -> None:
    made = [archive(_images(str(number).encode()), tmp_path) for number in range(6)]
    assert made[-1].exists()
    assert sorted(tmp_path.iterdir()) == sorted(made[-4:])


def test_a_program_brings_the_libraries_that_it_names(tmp_path: Path) -> None:
    layer = Layer()
    layer.add_file(Path("/usr/bin/env"))
    layer.add_needed()
    assert any(path.endswith("/libc.so.6") for path in layer.entries)
    assert any("/ld-linux" in path for path in layer.entries)


def test_trees_skip_what_they_are_told_to(tmp_path: Path) -> None:
    (tmp_path / "a" / "test").mkdir(parents=True)
    (tmp_path / "a" / "x.py").write_text("")
    (tmp_path / "a" / "test" / "y.py").write_text("")
    layer = Layer()
    layer.add_tree(tmp_path / "a", "/lib", re.compile(r"/test/"))
    assert set(layer.entries) == {"lib/x.py"}


def test_a_debian_package_comes_with_its_files_and_without_its_documents() -> None:
    layer = Layer()
    layer.add_package("bash")
    assert layer.entries["usr/bin/bash"].mode & 0o111
    assert layer.entries["usr/bin/rbash"].link == "bash"
    assert not any(path.startswith("usr/share/doc") for path in layer.entries)


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(ImageError, match=r"'no-such-package' .*; apt-get install brings it"):
        Layer().add_package("no-such-package")


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("tool", "docker.io/library/tool:latest"),
        ("tool:1", "docker.io/library/tool:1"),
        ("me/tool:1", "docker.io/me/tool:1"),
        ("registry.k8s.io/tool:v1", "registry.k8s.io/tool:v1"),
        ("localhost/tool", "localhost/tool:latest"),
        ("host:5000/tool", "host:5000/tool:latest"),
    ],
)
def test_a_short_name_is_the_one_that_containerd_reads(name: str, whole: str) -> None:
    assert reference(name) == whole


@pytest.mark.parametrize("file", ["tool", "tool=usr/bin/tool", "/no/such/file=/tool"])
def test_a_file_that_cannot_be_packed_is_refused(file: str) -> None:
    with pytest.raises(ImageError, match=f"--file {file}: "):
        own_image("tool", [], [file], [])
