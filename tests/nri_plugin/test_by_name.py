"""Which runtimes can be asked for a CDI device by its name."""

from __future__ import annotations

import pytest

from nri_plugin.node import cdi_by_name_problem


@pytest.mark.parametrize(
    "version", ["v1.7.30", "1.7.35", "v2.1.0", "v2.4.2", "2.2.1+debian1", "v3.0.0-rc.1"]
)
def test_these_can(version: str) -> None:
    assert cdi_by_name_problem("containerd", version) is None


@pytest.mark.parametrize(
    ("runtime", "version", "text"),
    [
        ("containerd", "v1.7.29", "containerd v1.7.29 drops CDI devices that a plugin asks for"),
        ("containerd", "v2.0.11", "drops CDI devices"),
        ("containerd", "1.6.40", "drops CDI devices"),
        ("containerd", "edge", "'edge', is not understood"),
        ("containerd", "v2", "is not understood"),
    ],
)
def test_these_cannot(runtime: str, version: str, text: str) -> None:
    assert text in (cdi_by_name_problem(runtime, version) or "")
