"""The lab's registry: what a pull asks of it, by any registry's name."""

from __future__ import annotations

import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path

import pytest

from lab.cluster.registry import Registry
from tools.images.oci import Image, Layer, archive

_NAMES = ("docker.io/library/ubuntu:latest", "nvcr.io/nvidia/k8s/sample:1")


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    layer = Layer()
    layer.add_bytes("/file", b"content" * 1000)
    path = archive([Image(name, [layer]) for name in _NAMES], tmp_path)
    with Registry([path], "127.0.0.1") as serving:
        path.unlink()
        yield serving


def _ask(registry: Registry, path: str, method: str = "GET") -> HTTPResponse:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    answer: HTTPResponse = opener.open(
        urllib.request.Request(registry.url + path, method=method), timeout=5
    )
    return answer


@pytest.mark.parametrize(
    ("registry_name", "path"),
    [
        ("docker.io", "library/ubuntu/manifests/latest"),
        ("nvcr.io", "nvidia/k8s/sample/manifests/1"),
    ],
)
def test_a_pull_gets_every_blob_with_its_digest(
    registry: Registry, registry_name: str, path: str
) -> None:
    """Also after the archive's file was removed."""
    query = f"?ns={registry_name}"
    head = _ask(registry, f"/v2/{path}{query}", "HEAD")
    assert head.read() == b""
    digest = head.headers["Docker-Content-Digest"]
    by_digest = _ask(registry, f"/v2/{path.rpartition('/')[0]}/{digest}{query}")
    assert by_digest.headers["Content-Type"] == "application/vnd.oci.image.manifest.v1+json"
    body = by_digest.read()
    assert f"sha256:{hashlib.sha256(body).hexdigest()}" == digest
    manifest = json.loads(body)
    for each in (manifest["config"], *manifest["layers"]):
        blob = _ask(registry, f"/v2/any/blobs/{each['digest']}{query}").read()
        assert f"sha256:{hashlib.sha256(blob).hexdigest()}" == each["digest"]
        assert len(blob) == each["size"]


@pytest.mark.parametrize(
    "path",
    [
        "/v2/library/ubuntu/manifests/latest",
        "/v2/library/ubuntu/manifests/latest?ns=quay.io",
        "/v2/library/ubuntu/manifests/other?ns=docker.io",
        "/v2/library/ubuntu/tags/list?ns=docker.io",
        "/v2/any/blobs/sha256:00?ns=docker.io",
        "/",
    ],
)
def test_content_that_the_registry_lacks_is_not_found(registry: Registry, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        _ask(registry, path)
