"""The command line: its output, and the arguments that it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gpuslice.contract import names
from gpuslice.contract.dialects import KOORDINATOR, VOLCANO
from nri_plugin import command_line, uninstall
from nri_plugin.doctor import command as doctor
from nri_plugin.policy.capabilities import CAPABILITIES
from nri_plugin.settings import Settings

CDI = (Path("/etc/cdi"), Path("/var/run/cdi"))


def test_defaults() -> None:
    given = command_line.from_arguments(["--library", "/l.so"], {"A": "b"})
    assert given.library == Path("/l.so")
    assert given.nri_socket == Path("/var/run/nri/nri.sock")
    assert given.run_dir == Path(names.HOST_RUN_DIR)
    assert given.store_dir == Path(names.HOST_RUN_DIR, ".store")
    assert given.containerd_state == Path("/run/containerd")
    assert tuple(given.cdi_dirs) == CDI
    assert given.index == "50"
    assert given.environment == {"A": "b", "GPUSLICE_HOST_ROOT": "/"}
    assert not given.verbose
    assert not given.core_forced
    assert given.http == ("127.0.0.1", 10275)
    assert given.log_format == "logfmt"
    assert tuple(given.node_resources) == KOORDINATOR.node_resources


def chosen(*arguments: str, **variables: str) -> Settings:
    named = {f"GPUSLICE_AGENT_{name}": value for name, value in variables.items()}
    return command_line.from_arguments(["--library", "/l", *arguments], named)


def test_flags() -> None:
    given = chosen("--cdi-dir=/a", "--cdi-dir=/b", "--index=07", "--run-dir=/r/", "--verbose")
    assert tuple(given.cdi_dirs) == (*CDI, Path("/a"), Path("/b"))
    assert (given.index, str(given.run_dir), given.verbose) == ("07", "/r", True)
    assert given.cdi_kinds == names.CDI_KINDS
    second, first = names.CDI_KINDS[1], names.CDI_KINDS[0]
    given = chosen("--cdi-kind", "a.b/gpu", "--cdi-kind", second)
    assert given.cdi_kinds == ("a.b/gpu", second, first)
    assert chosen("--nvidia-ctk", "off").nvidia_ctk == ()
    given = chosen("--allow-capability", "CAP_SYS_ADMIN", "--allow-capability", "sys_module")
    assert given.rules.capabilities == {"SYS_ADMIN", "SYS_MODULE"}
    # Other readers see generated specs only if the runtime must see them.
    assert chosen().generated_cdi_dir == Path(names.HOST_RUN_DIR, ".cdi")
    assert chosen("--whole-gpus", "any").generated_cdi_dir == Path("/var/run/cdi")


def test_a_flag_takes_precedence_over_the_environment() -> None:
    variables = {"CDI_DIR": "/a", "INDEX": "07"}
    given = chosen("--index", "08", **variables)
    assert (given.index, tuple(given.cdi_dirs)) == ("08", (*CDI, Path("/a")))
    given = chosen("--cdi-dir", "/b", **variables)
    assert (given.index, tuple(given.cdi_dirs)) == ("07", (*CDI, Path("/b")))
    given = chosen("--cdi-dir", "/etc/cdi")
    assert tuple(given.cdi_dirs) == (CDI[1], CDI[0]), "it takes precedence over the other now"


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("", {"compute", "utility"}),
        ("video, graphics", {"compute", "utility", "video", "graphics"}),
        ("all", set(CAPABILITIES)),
    ],
)
def test_capabilities(text: str, allowed: set[str]) -> None:
    assert chosen("--driver-capabilities", text).driver_capabilities == allowed


def test_every_setting_can_come_from_the_environment() -> None:
    """A variable that belongs to no setting sets nothing."""
    said = {
        "library": "/l.so",
        "nri_socket": "/n.sock",
        "run_dir": "/r",
        "containerd_state": "/c",
        "cdi_dir": "/a:/b",
        "index": "07",
        "strict": "true",
        "verbose": "1",
        "log_format": "json",
        "http": "unix:/h.sock",
        "driver_capabilities": "video",
        "dialects": "kai,volcano",
        "core_policy": "force",
        "nvidia_ctk": "chroot /host nvidia-ctk",
    }
    variables = {f"GPUSLICE_AGENT_{name.upper()}": value for name, value in said.items()}
    given = command_line.from_arguments([], variables)
    assert given.library == Path("/l.so")
    assert tuple(given.cdi_dirs) == (*CDI, Path("/a"), Path("/b"))
    assert given.http == Path("/h.sock")
    assert (given.index, given.strict, given.verbose) == ("07", True, True)
    assert (given.run_dir, given.log_format) == (Path("/r"), "json")
    assert given.core_forced
    assert given.driver_capabilities == {"compute", "utility", "video"}
    assert tuple(given.node_resources) == VOLCANO.node_resources
    assert given.nvidia_ctk == ("chroot", "/host", "nvidia-ctk")
    known = {command_line.variable_of(action) for action in command_line.parser()._actions} - {None}
    assert known >= set(variables)


@pytest.mark.parametrize("command", [doctor, uninstall])
def test_the_help_of_a_command_lists_the_settings_that_it_uses(command: ModuleType) -> None:
    known = command.parser()
    assert set(command._USES) <= {
        name for action in known._actions for name in action.option_strings
    }
    assert "--run-dir" in known.format_help() and "--strict" not in known.format_help()
    assert known.parse_args(["--strict"]).strict, "an agent's flags are valid"


@pytest.mark.parametrize(
    ("address", "read"),
    [
        ("off", None),
        ("unix:/a/b", Path("/a/b")),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("[::1]:9", ("::1", 9)),
    ],
)
def test_addresses(address: str, read: object) -> None:
    assert chosen("--http", address).http == read


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("INDEX", "7", "environment GPUSLICE_AGENT_INDEX: invalid value '7': must be two digits"),
        ("STRICT", "maybe", "GPUSLICE_AGENT_STRICT: invalid value 'maybe': must be true"),
        ("LOG_FORMAT", "xml", "GPUSLICE_AGENT_LOG_FORMAT: 'xml'"),
        ("CDI_DIR", "/a:b", "GPUSLICE_AGENT_CDI_DIR: invalid value 'b': must be an absolute"),
        ("HTTP", "9", "GPUSLICE_AGENT_HTTP: invalid value '9': must be HOST:PORT"),
    ],
)
def test_refused_from_the_environment(
    name: str, value: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        chosen(**{name: value})
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_what_the_operator_allows() -> None:
    assert not chosen().refuse_unenforceable
    assert "kata" not in chosen().rules.runtime_handlers
    more = ["--unenforceable", "refuse", "--runtime-handler", "mine", "--runtime-handler", "kata"]
    assert chosen(*more).refuse_unenforceable
    assert {"", "runc", "mine", "kata"} <= set(chosen(*more).rules.runtime_handlers)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("", "required: --library"),
        (
            "--library /l --dialects kai,yarn",
            "invalid value 'kai,yarn': must be some of koordinator, kai, volcano, hami",
        ),
        ("--library l.so", "invalid value 'l.so': must be an absolute path"),
        ("--library /a/../l.so", "must be an absolute path without '..'"),
        ("--library /l --index 5", "invalid value '5': must be two digits"),
        ("--library /l --unenforceable ignore", "invalid choice: 'ignore'"),
        ("--library /l --indices 12", "unrecognized arguments"),
        (
            "--library /l --driver-capabilities gaming",
            "invalid value 'gaming': must be some of compute, ",
        ),
        ("--library /l --nvidia-ctk '", "No closing quotation"),
        ("--library /l --cdi-kind gpu", "invalid value 'gpu': must be VENDOR/CLASS"),
        ("--library /l --cdi-kind management.nvidia.com/gpu", "must be a kind for tenants"),
        ("--library /l --http here", "invalid value 'here': must be HOST:PORT, unix:PATH"),
        ("--library /l --http unix:a", "invalid value 'a': must be an absolute path"),
        ("--library /l --allow-capability CHOWN", "CHOWN"),
        ("--library /l --core-policy fair", "invalid choice: 'fair'"),
    ],
)
def test_refused(arguments: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.from_arguments(arguments.split(), {})
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_help_has_examples_and_defaults() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nri_plugin", "--help"], capture_output=True, text=True, check=True
    )
    for word in (
        "examples:",
        "doctor",
        "GPUSLICE_AGENT_RUN_DIR",
        "--cdi-dir",
        "hostPID",
        "default: /run/gpuslice",
    ):
        assert word in " ".join(done.stdout.split())
