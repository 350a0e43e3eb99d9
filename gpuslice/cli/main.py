"""The root of `gpuslice`: the table of commands, `--help` and `--version`.

It imports no command before the command runs, so that `--help` is quick.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

COMMANDS: Final = (
    ("top", "show GPUs and slices, and their use", "gpuslice.cli.top"),
    ("ui", "show them in a browser, on this machine", "gpuslice.cli.ui"),
    ("explain", "why a pod waits, was refused or is slow", "gpuslice.cli.explain"),
    ("audit", "show containers that escape their limit", "gpuslice.cli.audit"),
    ("queues", "show KAI's queues, or convert them to Kueue's", "gpuslice.cli.queues"),
    ("doctor", "check this node, and list what to change", "nri_plugin.doctor.command"),
    ("simulate", "show where pods would be placed, and why", "scheduler.command_line"),
    ("run", "run a program or a Docker container under limits", "shim.cli"),
    ("ps", "show what they hold of this machine's GPUs", "gpuslice.cli.ps"),
    ("rm", "remove containers of `run --image`", "gpuslice.docker.rm"),
    ("host", "keep the limits of Docker containers", "gpuslice.docker.host"),
    ("show", "show a grant's limits, and their use", "shim.cli"),
    ("uninstall", "remove what gpuslice wrote into a cluster", "scheduler.command_line"),
)
"""Name, help and module of each command. The module's `main` returns the exit status."""
_WITH_COMMANDS: Final = ("scheduler.command_line", "shim.cli")
"""Modules whose `main` takes the command's name as its first argument."""

_HELP: Final = """\
usage: gpuslice [--help] [--version] COMMAND [ARGUMENT]...

Share NVIDIA GPUs between Kubernetes pods, with memory limits that hold.

commands:
{commands}

`gpuslice COMMAND --help` describes a command. As a plugin of kubectl: `kubectl gpuslice COMMAND`.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit status; 2 if there is no such command."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help", "help"):
        lines = (f"  {known:<11}{text}" for known, text, _ in COMMANDS)
        sys.stdout.write(_HELP.format(commands="\n".join(lines)))
        return 0
    if name == "--version":
        from gpuslice.contract import grant_file, region_file

        formats = f"region {region_file.VERSION}, grant {grant_file.VERSION}"
        sys.stdout.write(f"gpuslice {version()} ({formats})\n")
        return 0
    modules = {known: module for known, _, module in COMMANDS}
    if name not in modules:
        allowed = ", ".join(modules)
        sys.stderr.write(f"gpuslice: invalid command {name!r}: must be one of {allowed}\n")
        return 2
    by_image = name == "run" and asks_for_container(rest)
    module = "gpuslice.docker.run" if by_image else modules[name]
    given = [name, *rest] if module in _WITH_COMMANDS else rest
    status: int = import_module(module).main(given, prog="gpuslice")
    return status


def asks_for_container(arguments: Sequence[str]) -> bool:
    """Whether the arguments of `run` have --image before the command."""
    given = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return any(each.partition("=")[0] == "--image" for each in given)


def version() -> str:
    """Return the version that pyproject.toml states, in a checkout too."""
    from importlib import metadata

    try:
        return metadata.version("gpuslice")
    except metadata.PackageNotFoundError:
        import tomllib
        from pathlib import Path

        project = Path(__file__).parents[2] / "pyproject.toml"
        return str(tomllib.loads(project.read_text())["project"]["version"])
