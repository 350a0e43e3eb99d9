"""`python -m nri_plugin uninstall` as a process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from gpuslice.contract import names
from nri_plugin.host import releases, tmpfs
from nri_plugin.host.bundle import directory
from nri_plugin.host.lock import Lock
from nri_plugin.host.store import keep_mounted
from tests.contract.libraries import library
from tests.support import ROOT, until

pytestmark = pytest.mark.node

_AGENT: Final = "pid=7 host=node"


class Node:
    def __init__(self, root: Path) -> None:
        self.run_dir, self.state = root / "run", root / "state"
        self.store = self.run_dir / names.DIR_STORE
        self.root = root
        keep_mounted(self.store)
        self.release = releases.publish(library(), names.FILE_LIBRARY, self.store).parent
        self.command = [sys.executable, "-m", "nri_plugin", "uninstall"]
        self.command += [f"--run-dir={self.run_dir}", f"--host-root={root}"]
        self.command += ["--containerd-state=/state"]

    def run(self, *options: str) -> tuple[int, list[str], str]:
        """The exit code, the printed lines, the errors."""
        command = [*self.command, *options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    if made.store.exists():
        tmpfs.clear(made.store)


def test_it_removes_and_prints_each_path(node: Node) -> None:
    lines = [f"{path}: removed" for path in (node.release, node.store)]
    code, tried, _ = node.run("--dry-run")
    assert (code, tried) == (0, [f"{line} (dry run)" for line in lines])
    assert node.release.exists()
    assert node.run() == (0, lines, "")
    assert list(node.root.iterdir()) == []
    assert node.run() == (0, [], "")


def test_it_stays_ready_and_reports_each_path_once(node: Node) -> None:
    bundle = directory(node.state, "c")
    bundle.mkdir(parents=True)
    mounts = [{"source": str(node.release / names.FILE_LIBRARY)}]
    (bundle / "config.json").write_text(json.dumps({"process": {"cwd": "/"}, "mounts": mounts}))
    agent, done, out = Lock(node.run_dir, _AGENT), node.root / "done", node.root / "out"
    assert agent.try_acquire() is None
    code, lines, error = node.run()
    assert (code, lines) == (1, [])
    assert f"another agent serves this node ({_AGENT}): must have ended" in error
    with out.open("w") as file:
        command = [*node.command, "--stay", f"--done-file={done}"]
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)
    try:
        until(lambda: "must have ended" in out.read_text(), "it waits for the agent")
        assert not done.exists()
        agent.release()
        until(done.exists, "it is ready")
        assert out.read_text().count(f"{node.release}: stays: a container has it mounted\n") == 1
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert node.release.exists()
