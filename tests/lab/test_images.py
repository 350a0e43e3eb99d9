"""Archives: OCI's requirements, shared layers once, a key that follows the content."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.cluster.packing import own_image, reference
from tools.images.oci import Image, ImageError, Layer, archive


def _images(text: bytes = b"one") -> list[Image]:
    base, top = Layer(), Layer()
    base.add_bytes("/deep/in/file", text, 0o4755)
    base.add_link("/link", "deep")
    top.add_directory("/tmp", 0o1777)
    return [Image("local/a:1", [base], ["/deep/in/file"]), Image("local/b:1", [base, top])]


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


def test_a_tree_skips_excluded_files(tmp_path: Path) -> None:
    (tmp_path / "a" / "test").mkdir(parents=True)
    (tmp_path / "a" / "x.py").write_text("")
    (tmp_path / "a" / "test" / "y.py").write_text("")
    layer = Layer()
    layer.add_tree(tmp_path / "a", "/lib", re.compile(r"/test/"))
    assert set(layer.entries) == {"lib/x.py"}


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
