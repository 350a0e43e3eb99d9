"""`gpuslice audit`: what the agents' audit finds on the nodes of a cluster.

It reads the agents' metrics, with the user's rights.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields
from typing import Final

from gpuslice.cli import connecting
from gpuslice.cli.cluster import Node, one_line
from gpuslice.cli.live import Reader
from gpuslice.kube.access import Access
from gpuslice.kube.client import Kube

_DESCRIPTION: Final = """\
Show the containers that hold more of a GPU than they were given, or escape their limit, as the
nodes' agents see it from outside. The exit status is 1 if there are any, 0 if there are none, and 2
if the cluster cannot be read, no node has GPUs of gpuslice or no node answers. A node that does not
answer is named.
"""
_METRIC: Final = b"gpuslice_audit_findings"
_LABELS: Final = ("namespace", "pod", "container", "finding")


@dataclass(frozen=True, slots=True, order=True)
class Found:
    """A finding of a container. state: `now` or `earlier`."""

    node: str
    namespace: str
    pod: str
    container: str
    finding: str
    state: str


@dataclass
class Report:
    findings: list[Found] = field(default_factory=list)
    unanswered: dict[str, str] = field(default_factory=dict)
    """Why a node did not answer, by its name."""
    asked: int = 0
    """The number of nodes."""
    unread: str = ""
    """Which nodes the user may not list."""


def main(arguments: Sequence[str], prog: str) -> int:
    parser = connecting.parser(prog, "audit", _DESCRIPTION)
    parser.add_argument("nodes", nargs="*", metavar="NODE", help="only these (default: all)")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    return connecting.run(_run, parser.parse_args(arguments), failed=2)


def _run(chosen: argparse.Namespace, access: Access) -> int:
    report = asyncio.run(_read(chosen, access))
    if chosen.output == "json":
        sys.stdout.write(json.dumps(asdict(report), indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in table(report))
    if report.unread:
        sys.stderr.write(f"gpuslice audit: {report.unread}\n")
    silent: dict[str, list[str]] = {}
    for name, why in sorted(report.unanswered.items()):
        silent.setdefault(why, []).append(name)
    for why, nodes in silent.items():
        text = one_line(f"node {', '.join(nodes)} did not answer: {why}")
        sys.stderr.write(f"gpuslice audit: {text}\n")
    if not report.findings and 0 < report.asked == len(report.unanswered):
        return 2
    return int(bool(report.findings))


async def _read(chosen: argparse.Namespace, access: Access) -> Report:
    async with connecting.connect(chosen, access) as kube:
        return await read(kube, chosen.nodes)


async def read(kube: Kube, nodes: Sequence[str]) -> Report:
    """Read the findings of these nodes; of all for none. Raises KubeError, and LookupError for a
    node without GPUs, or if there is none."""
    reader, report = Reader(kube), Report()
    found = await reader.grants()
    report.unread = reader.notices.get("claims", "")
    if not found.nodes:
        none = "no node has a Device object or a ResourceSlice of gpuslice"
        raise LookupError(report.unread or none)
    shown = found.only(nodes or None, "NODE").nodes
    report.asked = len(shown)

    def take(node: Node, page: bytes) -> None:
        report.findings += parse(page, node.name)

    report.unanswered = {**await reader.pages(shown, take)}
    report.findings.sort()
    return report


def parse(page: bytes, node: str) -> Iterator[Found]:
    """Yield the findings of a page in Prometheus' text format. Raises ValueError."""
    from prometheus_client.parser import text_string_to_metric_families

    kept = b"\n".join(line for line in page.splitlines() if line.startswith(_METRIC))
    for family in text_string_to_metric_families(kept.decode(errors="replace") + "\n"):
        for sample in family.samples:
            named = {key: one_line(sample.labels.get(key, "")) for key in _LABELS}
            yield Found(node, **named, state="now" if sample.value else "earlier")


def table(report: Report) -> Iterator[str]:
    """Yield the lines of a table; one line if there are no findings."""
    if not report.findings:
        yield f"no findings on {report.asked - len(report.unanswered)} of {report.asked} nodes"
        return
    rows = [tuple(each.name.upper() for each in fields(Found)), *map(astuple, report.findings)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()
