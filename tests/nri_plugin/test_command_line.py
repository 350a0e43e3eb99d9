"""The command line: its output, and the arguments that it refuses."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from operator import attrgetter
from pathlib import Path
from types import ModuleType

import pytest

from gpuslice.contract import names
from gpuslice.contract.dialects import DIALECTS, KOORDINATOR, VOLCANO
from gpuslice.contract.grant_file import Policy
from gpuslice.contract.overhead import CODE_BYTES
from nri_plugin import command_line, uninstall
from nri_plugin.doctor import command as doctor
from nri_plugin.policy.capabilities import ALWAYS, CAPABILITIES
from nri_plugin.policy.gpu_modes import Offer
from nri_plugin.settings import Settings

CDI = (Path("/etc/cdi"), Path("/var/run/cdi"))
FIRST, SECOND = names.CDI_KINDS[:2]
ADMIN = {"SYS_ADMIN", "SYS_MODULE"}
HANDLERS = ("", *names.RUNTIME_HANDLERS)


def chosen(*arguments: str, **variables: str) -> Settings:
    named = {f"GPUSLICE_AGENT_{name}": value for name, value in variables.items()}
    library = [] if "LIBRARY" in variables else ["--library", "/l"]
    return command_line.from_arguments([*library, *arguments], named)


def test_defaults() -> None:
    given = chosen(A="b")
    assert (given.library, given.nri_socket) == (Path("/l"), Path("/var/run/nri/nri.sock"))
    assert given.run_dir == Path(names.HOST_RUN_DIR)
    assert given.store_dir == Path(names.HOST_RUN_DIR, ".store")
    assert given.generated_cdi_dir == Path(names.HOST_RUN_DIR, ".cdi")
    assert (given.containerd_state, tuple(given.cdi_dirs)) == (Path("/run/containerd"), CDI)
    assert given.environment == {"GPUSLICE_AGENT_A": "b", "GPUSLICE_HOST_ROOT": "/"}
    assert (given.index, given.http) == ("50", ("127.0.0.1", 10275))
    assert (given.log_format, given.nvidia_ctk) == ("logfmt", ("nvidia-ctk",))
    assert tuple(given.node_resources) == KOORDINATOR.node_resources
    assert (given.cdi_kinds, given.code_bytes) == (names.CDI_KINDS, CODE_BYTES)
    assert (given.driver_capabilities, given.runtime_handlers) == (ALWAYS, HANDLERS)
    assert not (given.verbose or given.strict or given.whole_gpus or given.allowed_capabilities)
    assert not (given.managed_free or given.refuse_unenforceable)
    required = [getattr(given, each.name) for each in fields(Settings) if each.default is MISSING]
    assert replace(given, http=None, node_name="", dialects=(KOORDINATOR,)) == Settings(*required)


@pytest.mark.parametrize(
    ("flag", "text", "name", "value"),
    [
        ("--library", "/l.so", "library", Path("/l.so")),
        ("--nri-socket", "/n.sock", "nri_socket", Path("/n.sock")),
        ("--run-dir", "/r/", "run_dir", Path("/r")),
        ("--containerd-state", "/c", "containerd_state", Path("/c")),
        ("--cdi-dir", "/a:/b", "cdi_dirs", [*CDI, Path("/a"), Path("/b")]),
        # /etc/cdi moves to the end of the list, where it outranks the other directory.
        ("--cdi-dir", "/etc/cdi", "cdi_dirs", [CDI[1], CDI[0]]),
        ("--cdi-kind", f"a.b/gpu:{SECOND}", "cdi_kinds", ("a.b/gpu", SECOND, FIRST)),
        ("--index", "07", "index", "07"),
        ("--strict", "true", "strict", True),
        ("--verbose", "1", "verbose", True),
        ("--log-format", "json", "log_format", "json"),
        ("--http", "off", "http", None),
        ("--http", "unix:/a/b", "http", Path("/a/b")),
        ("--http", "0.0.0.0:0", "http", ("0.0.0.0", 0)),
        ("--http", "[::1]:65535", "http", ("::1", 65535)),
        ("--driver-capabilities", "", "driver_capabilities", ALWAYS),
        ("--driver-capabilities", "video, ngx", "driver_capabilities", ALWAYS | {"video", "ngx"}),
        ("--driver-capabilities", "all", "driver_capabilities", set(CAPABILITIES)),
        ("--dialects", "kai,volcano", "node_resources", [*VOLCANO.node_resources]),
        ("--dialects", "koordinator,kai,volcano,hami", "dialects", [*DIALECTS]),
        ("--code-bytes", "64Gi", "code_bytes", 64 << 30),
        ("--core-policy", "turns", "core_policy", Policy.TURNS),
        ("--nvidia-ctk", "off", "nvidia_ctk", ()),
        ("--nvidia-ctk", "chroot /host x", "nvidia_ctk", ("chroot", "/host", "x")),
        ("--unenforceable", "refuse", "refuse_unenforceable", True),
        ("--runtime-handler", "a:kata", "runtime_handlers", (*HANDLERS, "a", "kata")),
        ("--allow-capability", "CAP_SYS_ADMIN:sys_module", "allowed_capabilities", ADMIN),
        # With whole GPUs the runtime reads generated specs, so they are in one of its directories.
        ("--whole-gpus", "any", "generated_cdi_dir", CDI[1]),
        ("--whole-gpus", "0, GPU-1f", "whole_gpus", Offer(reserved=frozenset({"0", "GPU-1f"}))),
    ],
)
def test_a_setting_comes_from_its_flag_or_its_variable(
    flag: str, text: str, name: str, value: object
) -> None:
    action = command_line.parser()._option_string_actions[flag]
    texts = text.split(":") if action.default == [] else [text]
    flags = [flag] if action.nargs == 0 else [word for each in texts for word in (flag, each)]
    for given in (chosen(*flags), chosen(**{action.dest.upper(): text})):
        assert attrgetter(name)(given) == value


def test_a_flag_takes_precedence_over_the_environment() -> None:
    variables = {"CDI_DIR": "/a", "INDEX": "07"}
    given = chosen("--index", "08", **variables)
    assert (given.index, tuple(given.cdi_dirs)) == ("08", (*CDI, Path("/a")))
    given = chosen("--core-policy", "capped", STRICT="false", VERBOSE="0", CORE_POLICY="fair")
    assert given.core_policy is Policy.CAPPED and not (given.strict or given.verbose)
    given = chosen("--cdi-dir", "/b", **variables)
    assert (given.index, tuple(given.cdi_dirs)) == ("07", (*CDI, Path("/b")))


@pytest.mark.parametrize("command", [doctor, uninstall])
def test_the_help_of_a_command_lists_the_settings_that_it_uses(command: ModuleType) -> None:
    known = command.parser()
    assert set(command._USES) <= {
        name for action in known._actions for name in action.option_strings
    }
    assert "--run-dir" in known.format_help() and "--strict" not in known.format_help()
    assert known.parse_args(["--strict"]).strict, "an agent's flags are valid"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("--library l.so", "invalid value 'l.so': must be an absolute path"),
        ("--library /a/../l.so", "must be an absolute path without '..'"),
        ("--dialects kai,yarn", "'kai,yarn': must be some of koordinator, kai, volcano, hami"),
        ("--index 5", "invalid value '5': must be two digits"),
        ("--unenforceable ignore", "invalid choice: 'ignore'"),
        ("--driver-capabilities gaming", "invalid value 'gaming': must be some of compute, "),
        ("--nvidia-ctk '", "No closing quotation"),
        ("--cdi-kind gpu", "invalid value 'gpu': must be VENDOR/CLASS"),
        ("--cdi-kind management.nvidia.com/gpu", "must be a kind for tenants"),
        ("--http here", "invalid value 'here': must be HOST:PORT, unix:PATH"),
        ("--http host:65536", "invalid value 'host:65536': must be HOST:PORT, unix:PATH"),
        ("--whole-gpus 0,any", "'0,any': must be off, any, or indexes and UUIDs of GPUs"),
        (f"--code-bytes {(64 << 30) + 1}", "must be 0 to 64Gi"),
        ("--allow-capability CHOWN", "CHOWN"),
        ("INDEX=7", "environment GPUSLICE_AGENT_INDEX: invalid value '7': must be two digits"),
        ("STRICT=maybe", "GPUSLICE_AGENT_STRICT: invalid value 'maybe': must be true"),
        ("CORE_POLICY=force", "GPUSLICE_AGENT_CORE_POLICY: invalid value 'force': must be one of"),
        ("LOG_FORMAT=xml", "GPUSLICE_AGENT_LOG_FORMAT: 'xml'"),
        ("CDI_DIR=/a:b", "GPUSLICE_AGENT_CDI_DIR: invalid value 'b': must be an absolute"),
        ("LIBRARY=", "required: --library"),
    ],
)
def test_refused(given: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        chosen(*given.split()) if given[0] == "-" else chosen(**dict([given.split("=")]))
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_help_has_examples_and_defaults() -> None:
    said = " ".join(command_line.parser().format_help().split())
    for word in ("examples:", "doctor", "GPUSLICE_AGENT_RUN_DIR", "--cdi-dir", "hostPID"):
        assert word in said
    assert "default: /run/gpuslice" in said
    assert "and any of video, graphics, display, ngx, compat32, or all" in said
