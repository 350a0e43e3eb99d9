"""What is installed for those who do not work in a checkout."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"contract", "nri_plugin", "shim", "simgpu"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("wheel")
    options = ["--no-build-isolation", "--no-deps", "--quiet", "--wheel-dir", str(into)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, str(ROOT)], text=True, capture_output=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = into.iterdir()
    return built


@pytest.mark.sim
def test_the_wheel_holds_the_library_beside_its_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "shim/libvgpu.so" in names
    assert wheel.name.startswith("gpuslice-0.1.0-py3-none-linux_")
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == PACKAGES
    assert not [name for name in names if name.endswith((".c", ".def", "CMakeLists.txt"))]


@pytest.mark.sim
def test_the_installed_agent_and_command_start(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    for module in ("nri_plugin", "shim", "simgpu"):
        done = subprocess.run(
            [sys.executable, "-m", module, "--help"],
            cwd=tmp_path,
            env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
            text=True,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr
        assert "usage:" in done.stdout
