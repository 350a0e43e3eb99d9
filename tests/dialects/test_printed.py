"""The recorded manifests equal those that other systems' documents print, byte for byte."""

from __future__ import annotations

import hashlib

import pytest
import yaml

from tests.dialects.pods import EXAMPLES, RECORDED

_PRINTED = {
    "kai/gpu-pod": "1cb1f4aeb848a5b82ab51db7147f1b52e1c6b6f5bacb8090dca2ff563021721e",
    "kai-queues": "e710b72d65384450cd687004abdb8331a61fd07955fbf992525eb0b6449fc8f1",
    "hami-core-distribute": "59bbd23be708557823f0e1d173826ccc2739682a76736817fede8eba71ea6df8",
    "koordinator/pod-example": "3f5c749f9fc7a2b7d9e0bc8a36746afeb32c75ae9f13801a2ea28c9d34003bf2",
    "volcano/gpu-pod1": "8c07cac00583b194ed089b08586683c5bfc97d077205ee9aca1302d9febfd555",
    "volcano/gpu-pod2": "e4781a383574f96bf5555198bbb035261ff9232a9038e2e9224b953af9b40925",
}
"""SHA-256 of the text in the document's code block or here-document."""


@pytest.mark.parametrize("name", _PRINTED)
def test_a_printed_manifest_is_unchanged(name: str) -> None:
    paths = [folder / f"{name}.yaml" for folder in (EXAMPLES, RECORDED)]
    (printed,) = [path.read_bytes() for path in paths if path.exists()]
    assert hashlib.sha256(printed).hexdigest() == _PRINTED[name]


def test_every_example_is_listed_with_its_origin() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for path in sorted(EXAMPLES.rglob("*.yaml")):
        assert f"]({path.relative_to(EXAMPLES)})" in listed
        assert all(yaml.safe_load_all(path.read_text()))
