"""`gpuslice rm NAME...`: removes containers of `gpuslice run`, and frees what they have booked."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

from gpuslice.docker import containers
from gpuslice.docker.containers import Container
from gpuslice.docker.machine import ERRORS, Machine, MachineError
from gpuslice.gpu import bookings

_SHORT_ID: Final = 12
"""Length of the ids that Docker shows."""
_DESCRIPTION: Final = """\
Stop and remove containers of `gpuslice run`, as `docker rm -f` does, and free their parts of GPUs.
Needs root.
"""


def main(arguments: Sequence[str], prog: str) -> int:
    parser = argparse.ArgumentParser(prog=f"{prog} rm", description=_DESCRIPTION)
    parser.add_argument("name", nargs="+", metavar="NAME", help="or the container's id, or KEY")
    chosen = parser.parse_args(arguments)
    try:
        machine, listed = Machine(os.environ), containers.listed()
        unknown = [each for each in chosen.name if not _remove(each, machine, listed)]
        left = containers.listed() if unknown else ()
    except (MachineError, *containers.ERRORS, *ERRORS) as error:
        sys.stderr.write(f"{prog} rm: {error}\n")
        return 1
    known = ", ".join(sorted(each.name for each in left)) or "none exists"
    for name in unknown:
        sys.stderr.write(
            f"{prog} rm: invalid value {name!r}: must be a container of {prog} run ({known})\n"
        )
    return int(bool(unknown))


def _remove(name: str, machine: Machine, listed: Sequence[Container]) -> bool:
    """Remove the containers of this name or id, else of the grant of this key or first name. Return
    whether there is one."""
    found = [each for each in listed if each.name == name or _is_id(each.id, name)]
    booked = bookings.of_machine(os.environ)
    with booked.locked():
        named = {key for key, grant in machine.stored().items() if grant and grant.name == name}
    keys = {each.key for each in found}
    if not found:
        keys = {each.key for each in listed if each.key == name} | named
        found = [each for each in listed if each.key in keys]
    for each in found:
        containers.remove(each.id)
    with booked.locked():
        for key in keys - {each.key for each in listed if each not in found}:
            machine.remove(key)
            booked.free(key)
    if keys:
        sys.stdout.write(f"{name}\n")
    return bool(keys)


def _is_id(whole: str, text: str) -> bool:
    return len(text) >= _SHORT_ID and whole.startswith(text)
