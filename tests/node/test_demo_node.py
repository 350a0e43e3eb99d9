"""The demo of a node, on this machine: its checks pass, and its document shows what it prints."""

from __future__ import annotations

import functools
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from lab.demo import node as demo_node
from lab.node.lab import Lab

pytestmark = pytest.mark.node


def test_an_interrupted_demo_reports_it_and_leaves_nothing(build_dir: Path) -> None:
    assert build_dir.is_dir()
    begun = subprocess.Popen(
        [sys.executable, "-m", "lab.demo.node", "--plain"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert begun.stdout is not None
    for line in begun.stdout:
        if line.startswith("2  "):
            break
    inside = psutil.Process(begun.pid).children(recursive=True)
    assert any(process.name() == "containerd" for process in inside)
    os.killpg(begun.pid, signal.SIGINT)
    _, complaint = begun.communicate()
    assert begun.returncode == 128 + signal.SIGINT
    assert complaint.splitlines()[-1] == "demo: interrupted; all that it started is removed"
    assert "Traceback" not in complaint
    assert not any(process.is_running() for process in inside)


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
