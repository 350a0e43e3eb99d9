"""The terminal of `gpuslice top`: one frame, or frames until it is interrupted."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live

from gpuslice.cli import top_view
from gpuslice.cli.cluster import Cluster
from gpuslice.cli.live import REFRESH_S, Reader
from gpuslice.kube.errors import KubeError


async def show(reader: Reader, nodes: Sequence[str] | None, *, once: bool) -> None:
    """Print these nodes, or all. Without a terminal, they are printed once."""
    console = Console(highlight=False)
    if console.is_terminal and not once:
        await _watch(reader, nodes, console)
        return
    cluster = (await reader.grants()).only(nodes)
    await reader.rates(cluster.nodes, REFRESH_S)
    for line in top_view.lines(_frame(console, reader, cluster), height=None):
        console.print(line, soft_wrap=True)


async def _watch(reader: Reader, nodes: Sequence[str] | None, console: Console) -> None:
    """Refresh until interrupted. The first frame has the grants, and use follows."""
    cluster = (await reader.grants()).only(nodes)
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def show() -> None:
            frame = _frame(console, reader, cluster)
            live.update(Group(*top_view.lines(frame, console.height)), refresh=True)

        show()
        gc.enable()
        while True:
            shown = top_view.visible(cluster, console.height, len(reader.notices))
            await reader.use(shown)
            show()
            await asyncio.sleep(REFRESH_S)
            reader.notices.pop("api", None)
            try:
                cluster = (await reader.grants()).only(nodes)
            except KubeError as error:  # the last grants stay on the screen
                reader.notices["api"] = f"grants are not current: {error}"


def _frame(console: Console, reader: Reader, cluster: Cluster) -> top_view.Frame:
    notices, ascii_only = list(reader.notices.values()), console.options.ascii_only
    return top_view.Frame(cluster, notices, console.width, ascii_only)
