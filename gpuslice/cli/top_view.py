"""Lines of `gpuslice top` for a terminal, as rich texts. Every figure is also readable without
colour. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from gpuslice.cli.cluster import Cluster, Gpu, Node, Slice, Waiting
from gpuslice.cli.use import SliceUse

_BAR: Final = 12
_FIGURES: Final = 50
"""Columns behind the name: the bar, memory, share and throttled."""
_UNICODE: Final = "█▒·"
_ASCII: Final = "#=."
_FULL: Final = 0.95
_MUCH: Final = 0.8
_NAME_LEAST: Final = 16
_WAITING: Final = 5
"""The most waiting pods of a frame that has a height."""
_GIB: Final = 1 << 30
_UNKNOWN: Final = "-"


@dataclass(frozen=True, slots=True)
class Frame:
    """What a display shows at one time."""

    cluster: Cluster
    notices: Sequence[str]
    width: int
    ascii_only: bool = False


def visible(cluster: Cluster, height: int | None, notices: int = 0) -> Sequence[Node]:
    """Return the nodes that fit. height: lines of the terminal; None for no limit."""
    if height is None:
        return cluster.nodes
    left = height - 4 - notices - len(_waiting_shown(cluster, height)) - bool(cluster.waiting)
    shown: list[Node] = []
    for node in cluster.nodes:
        listed = [gpu for gpu in node.gpus if not _is_free(gpu)]
        left -= 1 + sum(1 + len(gpu.slices) for gpu in listed) + (len(listed) < len(node.gpus))
        if left < 0 and shown:
            break
        shown.append(node)
    return shown


def lines(frame: Frame, height: int | None) -> Iterator[Text]:
    """Yield the frame's lines. With a height, each has at most the frame's width."""
    signs = _ASCII if frame.ascii_only else _UNICODE
    for line in _all(frame, height, signs):
        if height is not None:
            line.truncate(frame.width, overflow="crop" if frame.ascii_only else "ellipsis")
        yield line


def _all(frame: Frame, height: int | None, signs: str) -> Iterator[Text]:
    shown = visible(frame.cluster, height, len(frame.notices))
    yield _summary(frame)
    for notice in frame.notices:
        yield Text(notice, "yellow")
    key = f"{signs[0]} used {signs[1]} granted {signs[2]} free"
    heading = f"{'GiB used of limit':>28}{'share of':>12}{'throttled':>10}"
    yield Text(f"{key:{max(frame.width - _FIGURES, len(key))}}{heading}", "dim")
    for node in shown:
        yield from _node(node, frame, signs)
    if (more := len(frame.cluster.nodes) - len(shown)) > 0:
        yield Text(f"{more} more nodes: choose with --node, or --once shows all", "dim")
    if frame.cluster.waiting:
        waiting = _waiting_shown(frame.cluster, height)
        total = len(frame.cluster.waiting)
        yield Text(f"waiting: {total}" + (f", {len(waiting)} shown" * (len(waiting) < total)))
        for each in waiting:
            where = f" on {each.node}" if each.node else ""
            yield Text(f"  {each.namespace}/{each.pod}{where}: {each.reason}")


def _waiting_shown(cluster: Cluster, height: int | None) -> Sequence[Waiting]:
    return cluster.waiting if height is None else cluster.waiting[:_WAITING]


def _summary(frame: Frame) -> Text:
    gpus = [gpu for node in frame.cluster.nodes for gpu in node.gpus]
    total, granted = sum(g.memory_bytes for g in gpus), sum(g.granted_bytes for g in gpus)
    slices = sum(len(gpu.slices) for gpu in gpus)
    counts = f"nodes: {len(frame.cluster.nodes)}, GPUs: {len(gpus)}, slices: {slices}"
    part = _percent(granted / total if total else 0.0)
    memory = f"memory {granted / _GIB:,.0f} of {total / _GIB:,.0f} GiB granted ({part})"
    return Text(f"{counts}; {memory}", "bold")


def _node(node: Node, frame: Frame, signs: str) -> Iterator[Text]:
    yield Text(node.name, "bold")
    for gpu in node.gpus:
        if not _is_free(gpu):
            yield _gpu(gpu, frame.width, signs)
            yield from (_slice(each, frame.width, signs) for each in gpu.slices)
    free = [gpu for gpu in node.gpus if _is_free(gpu)]
    if free:
        minors = ", ".join(str(gpu.minor) for gpu in free)
        size = sum(gpu.memory_bytes for gpu in free) / _GIB
        yield Text(f"  GPU {minors}: without a slice, {size:.1f} GiB")


def _is_free(gpu: Gpu) -> bool:
    return gpu.healthy and not gpu.slices


def _gpu(gpu: Gpu, width: int, signs: str) -> Text:
    used = gpu.used_bytes
    name = f"  GPU {gpu.minor} {gpu.model}" + ("" if gpu.healthy else " UNHEALTHY")
    total = gpu.memory_bytes
    figures = [
        f"{_gib(used)} of {_gib(gpu.granted_bytes)} of {_gib(total)}",
        f"core {gpu.granted_core}%",
    ]
    line = Text(_fit(name, width - _FIGURES))
    line.append_text(_bar(used, gpu.granted_bytes, total, signs))
    line.append(f" {figures[0]:>20}{figures[1]:>12}")
    return line


def _slice(each: Slice, width: int, signs: str) -> Text:
    use = each.use or SliceUse()
    name = "/".join(filter(None, (each.namespace, each.pod, each.container)))
    if use.refused or use.violations:
        over = f", {use.violations:.0f}x over" if use.violations else ""
        name += f" ({use.refused or 0:.0f} refused{over})"
    limit = use.limit_bytes or each.memory_bytes
    line = Text(_fit(f"    {name}", width - _FIGURES))
    line.append_text(_bar(use.used_bytes, limit, limit, signs))
    line.append(f"{_gib(use.used_bytes)} of {_gib(limit)}".rjust(14))
    asked = "no cap" if each.core_percent is None else f"of {each.core_percent}%"
    line.append(f"{_percent(use.share_ratio)} {asked}".rjust(12))
    throttled = _percent(use.throttled_ratio)
    line.append(throttled.rjust(10), "red" if (use.throttled_ratio or 0) > 0.5 else "")
    return line


def _bar(used: float | None, granted: float, total: float, signs: str) -> Text:
    filled = _cells(used or 0, total)
    reserved = max(_cells(granted, total) - filled, 0)
    part = (used or 0) / granted if granted else 0.0
    colour = "red" if part >= _FULL else "yellow" if part >= _MUCH else "green"
    line = Text("[")
    line.append(signs[0] * filled, colour)
    line.append(signs[1] * reserved, "cyan")
    line.append(signs[2] * (_BAR - filled - reserved), "dim")
    return line.append("]")


def _cells(amount: float, total: float) -> int:
    """Return how many cells of a bar show the amount; at least one unless it is zero."""
    cells = round(_BAR * min(amount / total, 1.0)) if total else 0
    return max(cells, 1) if amount > 0 else 0


def _fit(name: str, width: int) -> str:
    """Cut the middle of a long name. Its end has the container and the pod's random part."""
    width = max(width - 1, _NAME_LEAST)
    if len(name) > width:
        end = (width - 2) * 2 // 3
        name = f"{name[: width - 2 - end]}..{name[-end:]}"
    return f"{name:{width + 1}}"


def _gib(amount: float | None) -> str:
    return _UNKNOWN if amount is None else f"{amount / _GIB:.1f}"


def _percent(ratio: float | None) -> str:
    return _UNKNOWN if ratio is None else f"{100 * ratio:.0f}%"
