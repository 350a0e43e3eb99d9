"""The root of `gpuslice`: its help, its version, and what each command imports."""

from __future__ import annotations

import re
import sys

import pytest

from gpuslice.cli import main
from gpuslice.contract import grant_file, region_file
from tests.support import ROOT, run
from tools.images.table import project

_NAMES = [name for name, _, _ in main.COMMANDS]


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert re.findall(r"^  (\w+) ", shown, re.MULTILINE) == _NAMES
    assert main.main([]) == 0 and capsys.readouterr().out == shown
    assert max(map(len, shown.splitlines())) <= 100
    assert shown in (ROOT / "docs/commands.md").read_text()


def test_an_unknown_command_is_refused_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.main(["tpo"]) == 2
    refused = f"gpuslice: invalid command 'tpo': must be one of {', '.join(_NAMES)}\n"
    assert capsys.readouterr().err == refused


def test_the_version_is_that_of_the_project_and_of_its_files(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.main(["--version"]) == 0
    formats = f"region {region_file.VERSION}, grant {grant_file.VERSION}"
    assert capsys.readouterr().out == f"gpuslice {project()['version']} ({formats})\n"
    chart = (ROOT / "manifests/chart/Chart.yaml").read_text()
    stated = re.findall(r"^(?:appVersion|version): (.*)$", chart, re.MULTILINE)
    assert stated == [project()["version"]] * 2


@pytest.mark.parametrize("name", _NAMES)
def test_a_commands_help_names_the_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main.main([name, "--help"])
    except SystemExit as ended:  # argparse ends the process after --help
        status = int(ended.code or 0)
    assert status == 0
    assert re.match(rf"\s*usage: gpuslice {name} ", capsys.readouterr().out, re.IGNORECASE)


def test_help_imports_no_component() -> None:
    """Python reads the files of a component in 0.1 s to 0.4 s, which `--help` has not."""
    program = "import sys; from gpuslice.cli.main import main; main(['--help'])\n"
    program += "print(*sys.modules, file=sys.stderr)"
    modules = run(sys.executable, "-c", program, cwd=ROOT).stderr.split()
    slow = {"nri_plugin", "scheduler", "shim", "rich", "numpy", "aiohttp", "argparse"}
    assert not slow & {*modules}
