"""Flags and environment: parsing, refusals, and the text of --help."""

from __future__ import annotations

import logging

import pytest

from gpuslice.kube.log_lines import Format
from scheduler import command_line
from scheduler.command_line import PREFIX
from scheduler.core.request import Policy
from scheduler.service import Settings
from tests.scheduler import commands


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings with which `serve` was called. Nothing is served."""
    found: list[Settings] = []

    async def note(settings: Settings) -> None:
        assert command_line._LOG.isEnabledFor(logging.DEBUG) == settings.verbose
        found.append(settings)

    monkeypatch.setattr(command_line, "_serve", note)
    monkeypatch.setattr("logging.basicConfig", lambda **_: None)
    return found


def test_each_flag_has_a_default_and_a_variable_and_outranks_it(served: list[Settings]) -> None:
    variables = {
        "LISTEN": "127.0.0.1:65535",
        "HTTP": "off",
        "KUBE_SCHEDULER": "[::1]:10260",
        "KUBE_SCHEDULER_VERSION": "v1.36.3",
        "POLICY": "koord-scheduler=spread gpuslice-scheduler=binpack",
        "LOG_FORMAT": "json",
        "VERBOSE": "true",
        "KUBECONFIG": "/k",
    }
    environment = {PREFIX + name: value for name, value in variables.items()}
    flags = ("--listen", "[::1]:2", "--policy", "a=spread")
    for done in (
        commands.run("serve"),
        commands.run("serve", environment=environment),
        commands.run("serve", *flags, environment=environment),
    ):
        assert done.exit_code == 0
    default, first, second = served
    assert (default, default.policies) == (Settings(), {})
    assert first == Settings(
        kubeconfig="/k",
        listen=("127.0.0.1", 65535),
        http=None,
        policies={"koord-scheduler": Policy.SPREAD, "gpuslice-scheduler": Policy.BINPACK},
        kube_scheduler=("::1", 10260),
        kube_scheduler_version="v1.36.3",
        log_format=Format.JSON,
        verbose=True,
    )
    assert second.listen == ("::1", 2) and second.policies == {"a": Policy.SPREAD}


@pytest.mark.parametrize(
    ("flag", "value", "must_be"),
    [
        ("--listen", "x", "HOST:PORT"),
        ("--http", "a:65536", "HOST:PORT or off"),
        ("--policy", "a=b", "NAME=binpack or NAME=spread"),
        ("--policy", "=spread", "NAME=binpack or NAME=spread"),
        ("--dialects", "kai", "koordinator, and any of kai, volcano, hami"),
    ],
)
def test_an_invalid_flag_is_refused(
    flag: str, value: str, must_be: str, served: list[Settings]
) -> None:
    done = commands.run("serve", flag, value)
    assert done.exit_code == 2
    assert f" {flag}: invalid value {value!r}: must be {must_be}" in done.stderr
    assert served == []


def test_a_failure_is_logged_with_a_traceback_if_it_is_a_defect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert commands.run("serve", "--kubeconfig", "/nowhere/config").exit_code == 1
    monkeypatch.setattr(command_line, "_serve", None)
    assert commands.run("serve").exit_code == 1
    error, defect = caplog.records
    assert "/nowhere/config" in error.getMessage() and not error.exc_info and defect.exc_info


def test_help_has_an_example_of_every_command() -> None:
    assert commands.run().exit_code == 2, "a command is required"
    text = commands.run("--help").stdout
    assert "Serve kube-scheduler until SIGTERM." in text
    assert commands.run("serve", "--help").stdout.count("(default: ") == 5
    for name in ("serve", "simulate", "uninstall"):
        assert f"python -m scheduler {name}" in text
