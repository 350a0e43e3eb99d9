"""Lines of `gpuslice top` for a terminal, as rich texts, readable without colour too. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from gpuslice.cli.cluster import Cluster, Gpu, Node, Slice
from gpuslice.cli.use import SliceUse

_BAR: Final = 12
_FIGURES: Final = 50
"""Columns behind the name: the bar, memory, share and throttled."""
_FULL: Final = 0.95
_MUCH: Final = 0.8
_NAME_LEAST: Final = 16
_WAITING: Final = 5
"""The most waiting pods of a frame that has a height."""
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Frame:
    """What a display shows at one time. height: lines of the terminal; None for no limit."""

    cluster: Cluster
    notices: Sequence[str]
    width: int
    height: int | None = None
    ascii_only: bool = False

    @property
    def signs(self) -> str:
        """The cells of a bar: used, granted, free."""
        return "#=." if self.ascii_only else "█▒·"


def visible(frame: Frame) -> Sequence[Node]:
    """Return the nodes that fit."""
    nodes = frame.cluster.nodes
    if frame.height is None:
        return nodes
    waiting = len(frame.cluster.waiting)
    left = frame.height - 4 - len(frame.notices) - min(waiting, _WAITING) - bool(waiting)
    for shown, node in enumerate(nodes):
        left -= len(list(_node(node, frame)))
        if left < 0 and shown:
            return nodes[:shown]
    return nodes


def lines(frame: Frame) -> Iterator[Text]:
    """Yield the frame's lines. With a height, each has at most the frame's width."""
    for line in _all(frame):
        if frame.height is not None:
            line.truncate(frame.width, overflow="crop" if frame.ascii_only else "ellipsis")
        yield line


def _all(frame: Frame) -> Iterator[Text]:
    shown, waiting = visible(frame), frame.cluster.waiting
    yield _summary(frame.cluster)
    for notice in frame.notices:
        yield Text(notice, "yellow")
    key = "{} used {} granted {} free".format(*frame.signs)
    heading = f"{'GiB used of limit':>28}{'share of':>12}{'throttled':>10}"
    yield Text(f"{key:{max(frame.width - _FIGURES, len(key))}}{heading}", "dim")
    for node in shown:
        yield from _node(node, frame)
    if (more := len(frame.cluster.nodes) - len(shown)) > 0:
        yield Text(f"{more} more nodes: choose with --node, or --once shows all", "dim")
    if waiting:
        listed = waiting if frame.height is None else waiting[:_WAITING]
        part = f", {len(listed)} shown" * (len(listed) < len(waiting))
        yield Text(f"waiting: {len(waiting)}{part}")
        for each in listed:
            where = f" on {each.node}" if each.node else ""
            yield Text(f"  {each.namespace}/{each.pod}{where}: {each.reason}")


def _summary(cluster: Cluster) -> Text:
    gpus = [gpu for node in cluster.nodes for gpu in node.gpus]
    total, granted = sum(g.memory_bytes for g in gpus), sum(g.granted_bytes for g in gpus)
    slices = sum(len(gpu.slices) for gpu in gpus)
    counts = f"nodes: {len(cluster.nodes)}, GPUs: {len(gpus)}, slices: {slices}"
    part = _percent(granted / total if total else 0.0)
    memory = f"memory {granted / _GIB:,.0f} of {total / _GIB:,.0f} GiB granted ({part})"
    return Text(f"{counts}; {memory}", "bold")


def _node(node: Node, frame: Frame) -> Iterator[Text]:
    yield Text(node.name, "bold")
    free = [gpu for gpu in node.gpus if gpu.healthy and not gpu.slices]
    for gpu in node.gpus:
        if gpu not in free:
            yield _gpu(gpu, frame)
            yield from (_slice(each, frame) for each in gpu.slices)
    if free:
        minors = ", ".join(str(gpu.minor) for gpu in free)
        size = sum(gpu.memory_bytes for gpu in free)
        yield Text(f"  GPU {minors}: without a slice, {_gib(size)} GiB")


def _gpu(gpu: Gpu, frame: Frame) -> Text:
    name = f"  GPU {gpu.minor} {gpu.model}" + " UNHEALTHY" * (not gpu.healthy)
    amounts = gpu.used_bytes, gpu.granted_bytes, gpu.memory_bytes
    line = _start(name, frame, *amounts)
    return line.append(f" {' of '.join(map(_gib, amounts)):>20}{f'core {gpu.granted_core}%':>12}")


def _slice(each: Slice, frame: Frame) -> Text:
    use = each.use or SliceUse()
    name = "/".join(filter(None, (each.namespace, each.pod, each.container)))
    if use.refused or use.violations:
        over = f", {use.violations:.0f}x over" if use.violations else ""
        name += f" ({use.refused or 0:.0f} refused{over})"
    limit = use.limit_bytes or each.memory_bytes
    asked = "no cap" if each.core_percent is None else f"of {each.core_percent}%"
    line = _start(f"    {name}", frame, use.used_bytes, limit, limit)
    line.append(f"{_gib(use.used_bytes)} of {_gib(limit)}".rjust(14))
    line.append(f"{_percent(use.share_ratio)} {asked}".rjust(12))
    colour = "red" if (use.throttled_ratio or 0) > 0.5 else ""
    return line.append(_percent(use.throttled_ratio).rjust(10), colour)


def _start(name: str, frame: Frame, used: float | None, granted: float, total: float) -> Text:
    """Return the name, cut in its middle to fit, and a bar. A name's end has the container and the
    pod's random part."""
    width = max(frame.width - _FIGURES - 1, _NAME_LEAST)
    if len(name) > width:
        end = (width - 2) * 2 // 3
        name = f"{name[: width - 2 - end]}..{name[-end:]}"
    filled = _cells(used or 0, total)
    reserved = max(_cells(granted, total) - filled, 0)
    part = (used or 0) / granted if granted else 0.0
    colour = "red" if part >= _FULL else "yellow" if part >= _MUCH else "green"
    line = Text(f"{name:{width + 1}}[")
    line.append(frame.signs[0] * filled, colour)
    line.append(frame.signs[1] * reserved, "cyan")
    line.append(frame.signs[2] * (_BAR - filled - reserved), "dim")
    return line.append("]")


def _cells(amount: float, total: float) -> int:
    """Return how many cells of a bar show the amount; at least one unless it is zero."""
    cells = round(_BAR * min(amount / total, 1.0)) if total else 0
    return max(cells, 1) if amount > 0 else 0


def _gib(amount: float | None) -> str:
    return "-" if amount is None else f"{amount / _GIB:.1f}"


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.0f}%"
