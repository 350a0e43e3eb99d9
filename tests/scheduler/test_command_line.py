"""Flags and environment: parsing, refusals, and the text of --help."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpuslice.kube.log_lines import Format
from scheduler import command_line
from scheduler.command_line import PREFIX, policies
from scheduler.core.request import Policy
from scheduler.service import Settings
from tests.scheduler import commands
from tests.support import ROOT


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings with which `serve` was started, instead of serving."""
    found: list[Settings] = []

    async def note(settings: Settings) -> None:
        found.append(settings)

    monkeypatch.setattr(command_line, "_serve", note)
    monkeypatch.setattr("logging.basicConfig", lambda **_: None)
    return found


def run(*arguments: str, **environment: str) -> tuple[int, str]:
    variables = {PREFIX + name.upper(): value for name, value in environment.items()}
    done = commands.run(*arguments, environment=variables)
    assert isinstance(done.exit_code, int)
    return done.exit_code, done.stdout + done.stderr


def test_without_flags_there_are_the_defaults(served: list[Settings]) -> None:
    assert run("serve")[0] == 0
    assert served == [Settings()]


def test_each_flag_has_a_variable_and_outranks_it(served: list[Settings]) -> None:
    environment = {
        "listen": "127.0.0.1:1",
        "http": "off",
        "policy": "koord-scheduler=spread gpuslice-scheduler=binpack",
        "log_format": "json",
        "verbose": "true",
        "kubeconfig": "/k",
    }
    assert run("serve", **environment)[0] == 0
    assert run("serve", "--listen", "[::1]:2", "--policy", "a=spread", **environment)[0] == 0
    first, second = served
    assert first == Settings(
        kubeconfig="/k",
        listen=("127.0.0.1", 1),
        http=None,
        policies={"koord-scheduler": Policy.SPREAD, "gpuslice-scheduler": Policy.BINPACK},
        log_format=Format.JSON,
        verbose=True,
    )
    assert second.listen == ("::1", 2) and second.policies == {"a": Policy.SPREAD}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("serve", "--listen", "x"), "--listen: invalid value 'x': must be HOST:PORT"),
        (
            ("serve", "--http", "a:70000"),
            "--http: invalid value 'a:70000': must be HOST:PORT or off",
        ),
        (
            ("serve", "--policy", "a=b"),
            "--policy: invalid value 'a=b': must be NAME=binpack or NAME=spread",
        ),
        (("serve", "--policy", "=spread"), "--policy: invalid value '=spread': must be"),
        (
            ("serve", "--dialects", "kai"),
            "--dialects: invalid value 'kai': must be koordinator, and any of kai, volcano, hami",
        ),
    ],
)
def test_an_invalid_argument_is_refused_with_what_is_allowed(
    arguments: tuple[str, ...], text: str, served: list[Settings]
) -> None:
    status, output = run(*arguments)
    assert status == 2
    assert f" {text}" in output
    assert served == []


def test_a_kubeconfig_that_is_not_there_is_named() -> None:
    command = [sys.executable, "-m", "scheduler", "serve", "--kubeconfig", "/nowhere/config"]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 1
    assert "/nowhere/config" in done.stderr and "Traceback" not in done.stderr


def test_help_has_an_example_of_every_command() -> None:
    text = run("--help")[1]
    for name in ("serve", "simulate", "uninstall"):
        assert f"python -m scheduler {name}" in text


def test_without_arguments_there_are_no_policies() -> None:
    assert policies("") == {}
