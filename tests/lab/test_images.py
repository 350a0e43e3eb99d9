"""Archives: OCI's requirements, shared layers once, a key that follows the content."""

from __future__ import annotations

import pytest

from lab.cluster.packing import own_image, reference
from tools.images.oci import ImageError, Layer


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
