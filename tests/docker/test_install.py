"""`gpuslice host install`: the unit of systemd, and what it reports to systemd."""

from __future__ import annotations

import configparser
import socket
import sys
from pathlib import Path

import pytest

from gpuslice.docker import host, install


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the log of a systemctl that succeeds."""
    log, program = tmp_path / "calls", tmp_path / "systemctl"
    program.write_text(f'#!/bin/sh\necho "$@" >> {log}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(install, "UNIT", tmp_path / "units" / "gpuslice-host.service")
    monkeypatch.setattr(install, "_SYSTEMD", tmp_path)
    return log


def test_the_unit_starts_before_docker_and_runs_for_ever(systemd: Path) -> None:
    for _ in range(2):
        assert install.main([], "gpuslice host") == 0
    calls = ["daemon-reload", "enable --now gpuslice-host.service"]
    assert systemd.read_text().splitlines() == 2 * calls
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(install.UNIT)
    assert unit["Unit"]["Before"] == "docker.service"
    # Docker waits until the grants are made.
    assert unit["Service"]["Type"] == "notify"
    assert unit["Service"]["Restart"] == "always"
    assert unit["Service"]["ExecStart"] == f'"{sys.executable}" -m gpuslice host'
    assert (Path(unit["Service"]["WorkingDirectory"]) / "gpuslice" / "__main__.py").exists()


def test_the_unit_is_removed(systemd: Path) -> None:
    assert install.main([], "gpuslice host") == 0
    for _ in range(2):
        assert install.main(["--uninstall"], "gpuslice host") == 0
    assert not install.UNIT.exists()
    assert systemd.read_text().count("disable --now gpuslice-host.service") == 1


def test_without_systemd_it_says_how_to_start(
    systemd: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install, "_SYSTEMD", systemd)  # it does not exist
    assert install.main([], "gpuslice host") == 0
    assert install.UNIT.exists() and not systemd.exists()
    assert "start `gpuslice host` as root before Docker" in capsys.readouterr().out


def test_a_percent_sign_of_a_path_is_no_specifier() -> None:
    assert '"/opt/100%%/python"' in install.text("/opt/100%/python", "/")


def test_the_state_is_reported_to_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(place)
        monkeypatch.setenv("NOTIFY_SOCKET", place)
        host._notify("READY=1")
        assert systemd.recv(64) == b"READY=1"
