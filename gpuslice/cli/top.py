"""The command `gpuslice top`: nodes, GPUs and slices as bars, with their use."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from gpuslice.cli import connecting
from gpuslice.cli.cluster import document
from gpuslice.cli.live import REFRESH_S, Reader
from gpuslice.kube.access import AccessError
from gpuslice.kube.errors import KubeError

_DESCRIPTION: Final = """\
Show nodes, GPUs and slices as bars: memory used of the limit, compute share of the request, and the
part of the time in which launches waited (summed over threads, so it can exceed 100 percent).

Grants come from the API server. Use comes from the agents of the shown nodes, through
pods/portforward. A figure that is not known is "-". Without a terminal, --once is implied.
"""


def main(arguments: Sequence[str], prog: str) -> int:
    parser = connecting.parser(f"{prog} top", _DESCRIPTION, "", "only its pods")
    parser.add_argument("--node", action="append", metavar="NAME", help="only this; repeatable")
    parser.add_argument("--once", action="store_true", help="print all nodes once, and end")
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="json implies --once"
    )
    chosen = parser.parse_args(arguments)
    gc.disable()  # until the first frame: the lists are large and have no cycles
    try:
        asyncio.run(_run(chosen))
    except (AccessError, KubeError, LookupError, OSError) as error:
        sys.stderr.write(f"gpuslice top: {error}\n")
        return 1
    except KeyboardInterrupt:
        pass
    return 0


async def _run(chosen: argparse.Namespace) -> None:
    async with connecting.connect(chosen.kubeconfig, "top") as kube:
        reader = Reader(kube, chosen.namespace)
        if chosen.output == "json":
            cluster = (await reader.grants()).only(chosen.node)
            await reader.rates(cluster.nodes, REFRESH_S)
            text = json.dumps(document(cluster, reader.notices.values()), indent=1)
            sys.stdout.write(f"{text}\n")
            return
        # rich is imported while the API server answers.
        screen, _ = await asyncio.gather(
            asyncio.to_thread(import_module, "gpuslice.cli.screen"), reader.grants()
        )
        await screen.show(reader, chosen.node, once=chosen.once)
