"""The substitute for nvidia-ctk: the answers that the agent's generator depends on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from nri_plugin.host.cdi_generator import OPTIONS, render
from nri_plugin.host.driver_root import DriverRoot
from tests.simgpu.host import Host


def ctk(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "simgpu.nvidia_ctk", "cdi", "generate", *options]
    environment = {**os.environ, "SIMGPU_DIR": str(directory)}
    return subprocess.run(command, env=environment, text=True, capture_output=True, check=False)


def names(document: dict[str, list[dict[str, str]]]) -> list[str]:
    return [device["name"] for device in document["devices"]]


def test_the_output_that_the_agent_requests(host: Host) -> None:
    done = ctk(host.directory, *OPTIONS[2:])
    known = names(json.loads((host.directory / "cdi" / "nvidia.json").read_text()))
    assert names(json.loads(done.stdout)) == [*known, "all"]
    assert names(json.loads(render(done.stdout.encode(), known[1:])[0])) == known[1:]


def test_the_hosts_paths_below_a_mount(host: Host) -> None:
    root = DriverRoot(Path("/"), Path("/driver-root"))
    done = ctk(host.directory, *OPTIONS[2:], *root.options("/usr/bin/nvidia-ctk"))
    known = json.loads((host.directory / "cdi" / "nvidia.json").read_text())
    assert "/driver-root/" in done.stdout
    assert json.loads(render(done.stdout.encode(), names(known), root)[0]) == known


def test_without_a_driver(tmp_path: Path) -> None:
    done = ctk(tmp_path, *OPTIONS[2:])
    assert done.returncode == 1 and done.stdout == ""
    assert "failed to initialize NVML" in done.stderr
