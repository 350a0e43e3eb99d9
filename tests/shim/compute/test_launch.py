"""The check before launches over a clock and events of the test; see launch_test.c."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("name", ["lost", "locked", "two-gpus", "reused", "waited"])
def test_launch(build_dir: Path, name: str) -> None:
    subprocess.run([build_dir / "bin" / "vgpu-launch-test", name], check=True, timeout=60)
