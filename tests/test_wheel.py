"""The wheel: what an installation without a checkout contains."""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support import ROOT, distributions, imported, run

pytestmark = pytest.mark.sim

PACKAGES = {"gpuslice", "nri_plugin", "scheduler", "shim"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("wheel")
    options = ["--no-build-isolation", "--no-deps", "--quiet", "--wheel-dir", str(into)]
    done = run(sys.executable, "-m", "pip", "wheel", *options, ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = into.iterdir()
    return built


def test_the_wheel_holds_the_library_beside_its_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"shim/libvgpu.so", "shim/forwarder.so"} <= {*names}
    assert wheel.name.startswith("gpuslice-0.1.0-py3-none-linux_")
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == PACKAGES
    sources = (".c", ".def", ".h", ".proto", "CMakeLists.txt")
    assert not [name for name in names if name.endswith(sources)]


def test_what_is_installed_declares_what_it_imports(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    required = re.findall(r"^Requires-Dist: (.*)$", archive.read(metadata).decode(), re.MULTILINE)
    declared = {re.split("[<>=]", each)[0] for each in required if "extra ==" not in each}
    of_commands = {re.split("[<>=]", each)[0] for each in required if 'extra == "cli"' in each}
    sources = (archive.read(name) for name in archive.namelist() if name.endswith(".py"))
    foreign = set().union(*map(imported, sources)) - PACKAGES
    assert distributions(foreign) - of_commands == declared


def test_the_installed_agent_and_command_start(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    for module in ("gpuslice", "nri_plugin", "shim"):
        environ = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
        done = run(sys.executable, "-m", module, "--help", cwd=tmp_path, env=environ)
        assert done.returncode == 0, done.stderr
        assert "usage:" in done.stdout
