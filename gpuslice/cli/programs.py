"""The components' programs as commands of `gpuslice`. Their own parsers define their flags."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

_PROG: Final = "gpuslice"


def run(arguments: Sequence[str]) -> int:
    from shim import cli

    return cli.main(["run", *arguments], _PROG)


def show(arguments: Sequence[str]) -> int:
    from shim import cli

    return cli.main(["show", *arguments], _PROG)


def doctor(arguments: Sequence[str]) -> int:
    from nri_plugin.doctor import command

    return command.main(arguments, os.environ, _PROG)


def simulate(arguments: Sequence[str]) -> int:
    from scheduler import command_line

    return command_line.main(["simulate", *arguments], os.environ, _PROG)


def uninstall(arguments: Sequence[str]) -> int:
    from scheduler import command_line

    return command_line.main(["uninstall", *arguments], os.environ, _PROG)
