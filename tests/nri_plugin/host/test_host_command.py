"""A program of the host is run from a pod whose image has no other program than Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from nri_plugin.host.host_command import in_root

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may enter another root")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host's root with one static program: busybox, by its applets' names."""
    busybox = shutil.which("busybox")
    assert busybox is not None
    (tmp_path / "bin").mkdir()
    for name in ("pwd", "true"):
        shutil.copy(busybox, tmp_path / "bin" / name)
    return tmp_path


@pytest.fixture(autouse=True)
def no_programs(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """Hide the programs that the image lacks."""
    monkeypatch.setenv("PATH", "/nowhere")


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, text=True, capture_output=True)


def test_a_program_runs_below_another_root(root: Path) -> None:
    assert _run(in_root(root, ["/bin/pwd"])).stdout == "/\n"
    assert "No such file" in _run(in_root(root, ["/bin/none"])).stderr
    assert in_root(Path("/"), ["pwd"]) == ["pwd"]
