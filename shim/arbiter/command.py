"""`python -m shim arbiter`. Imports neither NVML nor a driver: one runs on each node, in the memory
of the node agent's pod."""

from __future__ import annotations

import argparse
import select
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shim.arbiter import process

ABOUT: Final = "divide each GPU's time among the containers of a directory"
DESCRIPTION: Final = (
    f"{ABOUT[0].upper()}{ABOUT[1:]}, until standard input ends. Of several arbiters of one"
    " directory, one works and the others wait to take over."
)


def main(arguments: Sequence[str]) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m shim arbiter", description=DESCRIPTION)
    configure(parser)
    return run(parser.parse_args(arguments))


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--prefix", default="", metavar="TEXT", help="of the containers' directories (default: any)"
    )
    parser.add_argument(
        "parent", type=Path, metavar="DIR", help="holds the containers' directories"
    )


def run(options: argparse.Namespace) -> int:
    ends = select.poll()
    ends.register(sys.stdin, select.POLLIN)
    arbiter = process.Arbiter(options.parent, options.prefix)
    process.run(arbiter, lambda: bool(ends.poll(0)))
    return 0
