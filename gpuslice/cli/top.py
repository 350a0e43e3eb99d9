"""The command `gpuslice top`: nodes, GPUs and slices as bars, with their use."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Sequence
from typing import Final

from gpuslice.cli import connecting, first_lists
from gpuslice.kube.access import Access

_DESCRIPTION: Final = """\
Show nodes, GPUs and slices as bars: memory used of the limit, compute share of the request, and the
part of the time in which launches waited (summed over threads, so it can exceed 100 percent).

Grants come from the API server. Use comes from the agents of the shown nodes, through
pods/portforward. A figure that is not known is "-". Without a terminal, --once is implied.
"""


def main(arguments: Sequence[str], prog: str) -> int:
    parser = connecting.parser(prog, "top", _DESCRIPTION, "only its pods")
    parser.add_argument("--node", action="append", metavar="NAME", help="only this; repeatable")
    parser.add_argument("--once", action="store_true", help="print all nodes once, and end")
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="json implies --once"
    )
    chosen = parser.parse_args(arguments)
    gc.disable()  # until the first frame: the lists are large and have no cycles
    return connecting.run(_run, chosen)


def _run(chosen: argparse.Namespace, access: Access) -> int:
    lists = first_lists.start(access)
    from gpuslice.cli import screen  # it imports rich while the API server answers

    screen.show(chosen, access, lists)
    return 0
