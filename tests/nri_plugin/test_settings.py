"""The command line: what it says by itself, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from contract import names
from nri_plugin import settings


def test_defaults() -> None:
    chosen = settings.from_arguments(["--library", "/l.so"], {"A": "b"})
    assert chosen.library == Path("/l.so")
    assert chosen.nri_socket == Path("/var/run/nri/nri.sock")
    assert chosen.run_dir == Path(names.HOST_RUN_DIR)
    assert chosen.store_dir == Path(names.HOST_STORE_DIR)
    assert chosen.containerd_state == Path("/run/containerd")
    assert chosen.cdi_dirs == (Path("/etc/cdi"), Path("/var/run/cdi"))
    assert chosen.index == "50"
    assert chosen.environment == {"A": "b"}
    assert not chosen.verbose


def test_everything_given() -> None:
    arguments = "--library /l --cdi-dir /a --cdi-dir /b --index 07 --run-dir /r/ --verbose"
    chosen = settings.from_arguments(arguments.split(), {})
    assert chosen.cdi_dirs == (Path("/a"), Path("/b"))
    assert (chosen.index, str(chosen.run_dir), chosen.verbose) == ("07", "/r", True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("", "required: --library"),
        ("--library l.so", "'l.so' is not an absolute path"),
        ("--library /a/../l.so", "is not an absolute path without '..'"),
        ("--library /l --index 5", "'5', expected two digits"),
        ("--library /l --index 123", "expected two digits"),
        ("--library /l --indices 12", "unrecognized arguments"),
    ],
)
def test_refused(arguments: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        settings.from_arguments(arguments.split(), {})
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_help_teaches() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nri_plugin", "--help"], capture_output=True, text=True, check=True
    )
    for word in ("example:", "--cdi-dir", "hostPID", "default: /run/gpuslice"):
        assert word in " ".join(done.stdout.split())
