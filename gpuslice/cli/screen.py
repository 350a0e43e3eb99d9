"""The output of `gpuslice top` and `ps`: JSON, one frame, or frames until it is interrupted."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.live import Live

from gpuslice.cli import cluster, connecting, top_view
from gpuslice.cli.cluster import Cluster, Node
from gpuslice.cli.first_lists import Lists
from gpuslice.kube.access import Access
from gpuslice.kube.errors import KubeError

if TYPE_CHECKING:
    from gpuslice.cli.live import Reader

_REFRESH_S: Final = 2.0


def show(chosen: argparse.Namespace, access: Access, lists: Lists) -> None:
    """Print what the flags of `top` select. Without a terminal, it is printed once."""
    console = Console(highlight=False)
    found = [items for each in lists if (items := each.result()) is not None]
    known = None
    if len(found) == len(lists):
        known = cluster.read(*found, namespace=chosen.namespace)
    once = chosen.once or chosen.output == "json" or not console.is_terminal
    asyncio.run((_once if once else _watch)(chosen, access, known, console))


async def _once(
    chosen: argparse.Namespace, access: Access, known: Cluster | None, console: Console
) -> None:
    async with _reader(chosen, access, known) as reader:
        found = (await reader.grants()).only(chosen.node)
        await reader.rates(found.nodes, _REFRESH_S)
        notices = reader.notices.values()
    if chosen.output == "json":
        sys.stdout.write(f"{json.dumps(cluster.document(found, notices), indent=1)}\n")
        return
    once(console, found, notices)


def once(console: Console, found: Cluster, notices: Iterable[str]) -> None:
    """Print the cluster in one frame of any height."""
    for line in top_view.lines(replace(_frame(console, found, notices), height=None)):
        console.print(line, soft_wrap=True)


async def _watch(
    chosen: argparse.Namespace, access: Access, known: Cluster | None, console: Console
) -> None:
    """Refresh until interrupted. The first frame has the grants, and use follows."""
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def draw(found: Cluster, notices: Iterable[str] = ()) -> Sequence[Node]:
            frame = _frame(console, found, notices)
            live.update(Group(*top_view.lines(frame)), refresh=True)
            return top_view.visible(frame)

        if known is not None:
            draw(known.only(chosen.node))
        async with _reader(chosen, access, known) as reader:
            found = (await reader.grants()).only(chosen.node)
            gc.enable()
            while True:
                await reader.use(draw(found, reader.notices.values()))
                draw(found, reader.notices.values())
                await asyncio.sleep(_REFRESH_S)
                reader.notices.pop("api", None)
                try:
                    found = (await reader.grants()).only(chosen.node)
                except KubeError as error:  # the last grants stay on the screen
                    reader.notices["api"] = f"grants are not current: {error}"


@asynccontextmanager
async def _reader(
    chosen: argparse.Namespace, access: Access, known: Cluster | None
) -> AsyncIterator[Reader]:
    from gpuslice.cli.live import Reader  # it imports aiohttp, which can follow the first frame

    async with connecting.connect(chosen, access) as kube:
        yield Reader(kube, chosen.namespace, known)


def _frame(console: Console, found: Cluster, notices: Iterable[str]) -> top_view.Frame:
    size, ascii_only = console.size, console.options.ascii_only
    return top_view.Frame(found, list(notices), size.width, size.height, ascii_only)
