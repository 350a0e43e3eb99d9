"""`python -m nri_plugin uninstall` beside real containers: what runs keeps its limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import Process
from lab.node.lab import Lab

from .conftest import GIB, hold_all, probe
from .library.test_store import held

pytestmark = pytest.mark.node

SHARE = 10 * GIB


def uninstall(lab: Lab) -> subprocess.CompletedProcess[str]:
    paths = lab.containerd.paths
    command: list[str | Path] = [sys.executable, "-m", "nri_plugin", "uninstall"]
    command += ["--run-dir", lab.run_dir, "--store-dir", lab.store_dir]
    return lab.namespace.run([*command, "--containerd-state", paths.state])


def test_a_running_container_keeps_its_limit_and_its_files_until_its_end(lab: Lab) -> None:
    refused = uninstall(lab)
    assert refused.returncode == 1 and "another agent serves this node" in refused.stderr
    share = lab.share({"main": [(0, SHARE, 10)]})
    with lab.pod("gone", share) as pod:
        pod.run("main", Process(PYTHON_IMAGE))
        lab.stop_agent()
    with lab.pod("stays") as without:
        without.run("main", Process(PYTHON_IMAGE))
        lab.start_agent()
        with lab.pod("limited", share) as pod:
            container = pod.run("main", Process(PYTHON_IMAGE))
            hold_all(container)
            maps = held(container)
            lab.stop_agent()
            done = uninstall(lab)
            assert done.returncode == 0, done.stderr
            assert done.stdout.count("stays: a container has it mounted") == 2, done.stdout
            assert held(container) == maps
            container.exec(["sh", "-c", "kill $(cat /tmp/pid)"])
            assert probe(container).held_to(SHARE)
        done = uninstall(lab)
        assert "stays" not in done.stdout, done.stdout
    inside = lab.namespace.run(["sh", "-c", f"ls -A {lab.run_dir} {lab.store_dir}; true"]).stdout
    assert inside.strip() == "", inside
