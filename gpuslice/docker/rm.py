"""`gpuslice rm NAME...`: removes containers of `gpuslice run`, and frees what they have booked."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

from gpuslice.docker import containers
from gpuslice.docker.grants import Grant
from gpuslice.docker.machine import ERRORS, Machine, Places, settings
from gpuslice.gpu import bookings
from shim.library import LibraryError

_SHORT_ID: Final = 12
"""Length of the ids that Docker shows."""
_DESCRIPTION: Final = """\
Stop and remove containers of `gpuslice run`, as `docker rm -f` does, and free their parts of GPUs.
Needs root.
"""


def main(arguments: Sequence[str], prog: str) -> int:
    parser = argparse.ArgumentParser(prog=f"{prog} rm", description=_DESCRIPTION)
    parser.add_argument("name", nargs="+", metavar="NAME", help="or the container's id")
    chosen = parser.parse_args(arguments)
    try:
        if os.geteuid() != 0:
            raise PermissionError("invalid user: must be root, which mounted the grants")
        return _remove(chosen.name, Machine(settings(os.environ), Places()), prog)
    except (LibraryError, *containers.ERRORS, *ERRORS) as error:
        sys.stderr.write(f"{prog} rm: {error}\n")
        return 1


def _is_id(whole: str, text: str) -> bool:
    return len(text) >= _SHORT_ID and whole.startswith(text)


def _remove(wanted: Sequence[str], machine: Machine, prog: str) -> int:
    """Remove those that exist. Return the exit status."""
    listed = containers.listed()
    grants = [each for each in machine.stored().values() if isinstance(each, Grant)]
    known = {each.name for each in listed} | {each.name for each in grants}
    status = 0
    booked = bookings.of_machine(os.environ)
    for name in wanted:
        found = [each for each in listed if each.name == name or _is_id(each.id, name)]
        for each in found:
            containers.remove(each.id)
        keys = {each.key for each in found} | {each.key for each in grants if each.name == name}
        keys -= {each.key for each in listed if each not in found}
        with booked.locked():
            for key in keys:
                machine.remove(key)
                booked.free(key)
        if keys or found:
            sys.stdout.write(f"{name}\n")
        else:
            names = ", ".join(sorted(known)) or "none exists"
            sys.stderr.write(
                f"{prog} rm: invalid value {name!r}: must be a container of {prog} run ({names})\n"
            )
            status = 1
    return status
