"""The demo of a node, on this machine: its checks pass, and its document shows what it prints."""

from __future__ import annotations

import functools
import io
import subprocess
from pathlib import Path

import pytest

from lab.demo import node as demo_node
from lab.node.lab import Lab

pytestmark = pytest.mark.node


def test_the_document_shows_what_the_demo_prints(build_dir: Path) -> None:
    assert build_dir.is_dir()
    written = demo_node.DOCUMENT.read_text()
    assert demo_node.documented(written) == written, (
        "docs/demo.md's sample is stale: python -m lab.demo.node --write"
    )


def test_a_library_that_limits_nothing_fails_the_demo(
    build_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert build_dir.is_dir()
    idle = tmp_path / "idle.so"
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", idle], check=True)
    monkeypatch.setattr(demo_node, "Lab", functools.partial(Lab, library=idle))
    out = io.StringIO()
    assert demo_node.perform(out, plain=True, masked=True) == 1
    assert "✗ each query returns half of the GPU" in out.getvalue()
    assert "40.0 GiB of 40.0 GiB" in out.getvalue(), "the bar shows the actual value"
