"""`make demo`: all its checks hold, and it leaves nothing, even if it is interrupted."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lab.cluster.directory import ClusterDirectory, ClusterStatus
from lab.demo import __main__ as demo
from lab.demo import story
from tests.support import until

pytestmark = pytest.mark.e2e


@pytest.fixture
def directory(build_dir: Path) -> Iterator[ClusterDirectory]:
    assert build_dir.is_dir()
    directory = ClusterDirectory(Path(f"/tmp/gs-{secrets.token_hex(4)}"))
    yield directory
    left = directory.path.exists()
    directory.clear()
    assert not left


def _begun(directory: ClusterDirectory, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lab.demo", "--at", str(directory.path), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _run(directory: ClusterDirectory, *options: str) -> str:
    with _begun(directory, *options) as run:
        said, complaint = run.communicate()
    assert run.returncode == 0, said + complaint
    return said


def _from_its_second_chapter(text: str) -> Sequence[str]:
    """Return the demo's output from chapter 2 to the end, without times and measured shares."""
    lines = text[text.index("\n2  ") : text.index(" all passed.")].splitlines()
    return [re.sub(r" +\([\d.]+ [s%]\)$", "", line.rstrip()) for line in lines]


def _left(directory: ClusterDirectory, status: ClusterStatus) -> list[str]:
    if status.state:
        return directory.left(status)
    return [str(directory.path)] if directory.path.exists() else []


def test_a_run_is_as_documented_and_leaves_nothing(
    directory: ClusterDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run succeeds even where a proxy is set for HTTPS: no request to the cluster uses it."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    documented = _from_its_second_chapter(demo.DOCUMENT.read_text())
    assert _from_its_second_chapter(_run(directory)) == documented


@pytest.mark.parametrize(("chapter", "number"), [("4  ", signal.SIGINT), ("2  ", signal.SIGTERM)])
def test_an_interrupted_demo_reports_it_and_leaves_nothing(
    directory: ClusterDirectory, chapter: str, number: signal.Signals
) -> None:
    with _begun(directory) as run:
        assert run.stdout is not None
        assert any(line.startswith(chapter) for line in run.stdout)
        until(lambda: directory.owner() is not None, "the cluster has an owner")
        status = directory.read_status()
        send = os.killpg if number == signal.SIGINT else os.kill
        send(run.pid, number)
        _, complaint = run.communicate()
    assert run.returncode == 128 + number
    assert complaint.splitlines()[-1] == "demo: interrupted; all that it started is removed"
    assert "Traceback" not in complaint
    assert _left(directory, status) == []


def test_a_kept_cluster_is_usable_and_blocks_a_second_demo(directory: ClusterDirectory) -> None:
    said = _run(directory, "--keep")
    assert f"make cluster-down AT={directory.path}" in said
    to_try = said.partition("To try:\n")[2].splitlines()
    exported, first, second, third = (line.partition("#")[0].strip() for line in to_try[:4])

    def typed(line: str) -> str:
        script = f"shopt -s expand_aliases\n{exported}\n{line}\n"
        return subprocess.check_output(["bash", "-c", script], text=True)

    limit_mib = story._GPU_MIB * story.TURNS[story.LAST] // 100
    assert f" {limit_mib}MiB" in typed(first.replace("-it", "").replace("bash", "nvidia-smi"))
    assert story.LAST in typed(second)
    assert "deleted" in typed(third)
    with _begun(directory) as another:
        another.communicate()
    assert another.returncode == 1
    status = directory.read_status()
    assert status.is_healthy
    down = [sys.executable, "-m", "lab.cluster", "down", "--at", str(directory.path)]
    assert subprocess.run(down).returncode == 0
    assert _left(directory, status) == []
