"""The claims on physical memory: threads, a full table, fork; under sanitizers too."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import build

pytestmark = pytest.mark.sim

_RUNS = ["threads", "full", "fork", "shared"]


@pytest.mark.parametrize("name", _RUNS)
def test_claims(build_dir: Path, name: str) -> None:
    subprocess.run([build_dir / "bin" / "vgpu-claims-test", name], check=True)


@pytest.mark.parametrize("preset", ["asan", "tsan"])
def test_claims_under_sanitizers(preset: str) -> None:
    program = build(preset) / "bin" / "vgpu-claims-test"
    for name in _RUNS:
        subprocess.run([program, name], check=True)
