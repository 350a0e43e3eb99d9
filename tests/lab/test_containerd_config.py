"""The configuration of each containerd: what it reads is private, and NRI is on."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from simgpu.lab import containerd_config
from simgpu.lab.containerd_config import Options
from simgpu.lab.releases import RELEASES, Release

HERE = Path("/lab")
EACH = pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)


def _read(release: Release, options: Options | None = None) -> dict[str, Any]:
    return tomllib.loads(containerd_config.text(release, HERE, options or Options()))


def _paths(value: object) -> list[str]:
    if isinstance(value, dict):
        return [path for inner in value.values() for path in _paths(inner)]
    if isinstance(value, list):
        return [path for inner in value for path in _paths(inner)]
    return [value] if isinstance(value, str) and value.startswith("/") else []


@EACH
def test_every_path_is_under_the_labs_directory(release: Release) -> None:
    paths = _paths(_read(release))
    assert len(paths) > 8
    assert [path for path in paths if not path.startswith(f"{HERE}/")] == []


@EACH
def test_nri_is_on_and_waits_as_long_as_it_is_told(release: Release) -> None:
    read = _read(release, Options(validator=False, request_timeout_s=7))
    nri = read["plugins"]["io.containerd.nri.v1.nri"]
    assert (nri["disable"], nri["plugin_request_timeout"]) == (False, "7s")
    validator = nri.get("default_validator")
    none = {"required_plugins": [], "tolerate_missing_plugins_annotation": ""}
    assert validator == ({"enable": False, **none} if release.has_validator else None)


def test_the_formats_are_those_that_the_releases_read() -> None:
    versions = {name: _read(release)["version"] for name, release in RELEASES.items()}
    assert versions == {"1.7": 2, "2.2": 3, "2.3": 3, "2.4": 3, "2.4-nri": 3}
    assert "io.containerd.grpc.v1.cri" in _read(RELEASES["1.7"])["plugins"]
