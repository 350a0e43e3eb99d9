"""Settings from flags and the environment, and the text of --help.

Each flag of flags.py can also be set by an environment variable, for example `--run-dir` by
GPUSLICE_AGENT_RUN_DIR. The flag takes precedence.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from gpuslice.contract import names
from gpuslice.contract.grant_file import Policy
from gpuslice.gpu import driver_root
from gpuslice.gpu.driver_root import HostView
from nri_plugin.flags import FLAGS
from nri_plugin.host import discovery
from nri_plugin.policy.front_ends import FrontEnd
from nri_plugin.policy.memory_limits import MemoryLimits
from nri_plugin.settings import Settings

PROG: Final = "python -m nri_plugin"
_DESCRIPTION: Final = """\
gpuslice's node agent: injects shares of GPUs, with their limits, into containers through the
container runtime's NRI. A pod gets a GPU from this agent or not at all.

  python -m nri_plugin [settings]          serve, with the settings below
  python -m nri_plugin doctor [settings]   check this node and list what to change; changes nothing
  python -m nri_plugin distribute          keep a copy of the library for other projects' pods
  python -m nri_plugin uninstall           remove gpuslice's files from this node
"""

_EPILOG: Final = """\
Each setting is also read from the environment: --run-dir from GPUSLICE_AGENT_RUN_DIR. Switches take
true or false; separate the values of a repeatable flag with colons. A flag takes precedence.

The agent serves until SIGTERM, and reconnects when containerd restarts. Its one line on standard
output, "ready: ...", means that containers are adjusted from then on; its log is on standard error.
HTTP endpoints: /healthz (the event loop runs), /readyz (containers get their share now; otherwise
the reasons), /metrics (for Prometheus).

In a pod it needs: root, hostPID, the run directory under the same path as on the host (mount
propagation Bidirectional), the host's / at --host-root (HostToContainer), and its /dev. For probes
by the kubelet, hostNetwork and httpGet with host 127.0.0.1.

examples:
  python -m nri_plugin --library /opt/gpuslice/libvgpu.so
  python -m nri_plugin --library /opt/gpuslice/libvgpu.so --http 0.0.0.0:10275 --log-format json
  curl 127.0.0.1:10275/readyz
"""
_ENVIRONMENT_PREFIX: Final = "GPUSLICE_AGENT_"
_SWITCH: Final = {"true": True, "1": True, "false": False, "0": False}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROG,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for flag, (what, more) in FLAGS.items():
        has_default = "(default: " in what or not isinstance(more.get("default"), str)
        text = what if has_default else f"{what} (default: {more['default']})"
        parser.add_argument(flag, help=text, **more)
    return parser


def command_parser(
    prog: str, description: str, epilog: str, uses: Sequence[str]
) -> argparse.ArgumentParser:
    """Return the parser of a command that accepts all of the agent's flags and requires none.
    uses: the flags that have an effect on the command. --help lists only these."""
    known = parser()
    known.prog, known.description, known.epilog = prog, description, epilog
    for action in known._actions:
        action.required = False
        if not {"--help", *uses} & {*action.option_strings}:
            action.help = argparse.SUPPRESS
    return known


def from_arguments(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Return the agent's settings. Exits for invalid arguments and for --help, as argparse does."""
    return settings_of(parse(parser(), arguments, environment), environment)


def parse(
    known: argparse.ArgumentParser, arguments: Sequence[str], environment: Mapping[str, str]
) -> argparse.Namespace:
    """Return each flag's value. An absent flag's value comes from its environment variable. Exits
    if a value is invalid."""
    lists: dict[str, object] = {}
    for action in known._actions:
        variable = _ENVIRONMENT_PREFIX + action.dest.upper()
        text = environment.get(variable, "")
        if not text or action.dest == "help":
            continue
        try:
            value = _from_text(action, text)
        except (argparse.ArgumentTypeError, ValueError) as error:
            known.error(f"environment {variable}: {error}")
        if isinstance(action, argparse._AppendAction):
            lists[action.dest] = value  # argparse would append flags to a default
        else:
            action.default, action.required = value, False
    values = known.parse_args(arguments)
    for name, value in lists.items():
        if not getattr(values, name):
            setattr(values, name, value)
    return values


def settings_of(options: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
    """Convert parsed flags to Settings. `library` is `/` for a command without --library."""
    known = {field.name for field in fields(Settings)}
    settings = {name: value for name, value in vars(options).items() if name in known}
    view = HostView(options.host_root)
    roots = {driver_root.HOST_VARIABLE: str(options.host_root)}
    if options.driver_root:
        roots[driver_root.VARIABLE] = str(options.driver_root)
    settings |= {
        "allowed_capabilities": frozenset(options.allow_capability),
        "cdi_kinds": tuple(dict.fromkeys((*options.cdi_kind, *names.CDI_KINDS))),
        "cdi_dirs": [*map(view.seen, _extended(discovery.CDI_DIRS, options.cdi_dir or ()))],
        "containerd_state": view.seen(options.containerd_state or discovery.containerd_state(view)),
        "core_policy": Policy(options.core_policy),
        "device_plugin_dir": view.seen(discovery.DEVICE_PLUGINS),
        "front_end": FrontEnd(options.front_end),
        "environment": {**environment, **roots},
        "kubeconfig": str(options.kubeconfig or ""),
        "library": options.library or Path("/"),
        "kubelet_dir": view.seen(options.kubelet_dir or discovery.kubelet(view)),
        "memory_limits": MemoryLimits(options.memory_limits),
        "managed_free": options.managed_memory == "free",
        "nri_socket": view.seen(options.nri_socket),
        "refuse_unenforceable": options.unenforceable == "refuse",
        "runtime_handlers": ("", *names.RUNTIME_HANDLERS, *options.runtime_handler),
    }
    return Settings(**settings)


def _extended(defaults: Sequence[Path], added: Sequence[Path]) -> Sequence[Path]:
    """Append the operator's paths to the defaults, which always stay included."""
    return (*(path for path in defaults if path not in added), *dict.fromkeys(added))


def _from_text(action: argparse.Action, text: str) -> object:
    if action.nargs == 0:
        if text.lower() not in _SWITCH:
            raise ValueError(f"invalid value {text!r}: must be true or false")
        return _SWITCH[text.lower()]
    convert: Any = action.type or str
    if isinstance(action, argparse._AppendAction):
        return [convert(part) for part in text.split(":") if part]
    value = convert(text)
    if action.choices is not None and value not in action.choices:
        allowed = ", ".join(map(str, action.choices))
        raise ValueError(f"invalid value {text!r}: must be one of {allowed}")
    return value
