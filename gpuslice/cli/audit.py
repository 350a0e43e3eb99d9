"""`gpuslice audit`: what the agents' audit finds on the nodes of a cluster.

It reads the agents' metrics, with the user's rights. Without the right to do so it reads the Events
that the agents wrote, which the API server keeps for an hour by default.
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
from gpuslice.contract import names
from gpuslice.kube.access import Access
from gpuslice.kube.client import Kube
from gpuslice.kube.fields import Json, at

_DESCRIPTION: Final = """\
Show the containers that hold more of a GPU than they were given, or escape their limit, as the
nodes' agents see it from outside. The exit status is 1 if there are any, 0 if there are none, and 2
if the cluster cannot be read or no node answers. A node that does not answer is named.
"""
_METRIC: Final = b"gpuslice_audit_findings"
_LABELS: Final = ("namespace", "pod", "container", "finding")
_EVENTS: Final = "/apis/events.k8s.io/v1/events"
_BY_EVENTS: Final = (
    "no metrics: needs get, create pods/portforward in"
    f" {names.NAMESPACE} ({names.VIEWER}); these are Events, kept for an hour by default"
)


@dataclass(frozen=True, slots=True, order=True)
class Found:
    """A finding of a container. state: `now`, `earlier` or, of an Event, its text."""

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
    notices: list[str] = field(default_factory=list)
    asked: int = 0
    """The number of nodes."""


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
    silent = sorted(report.unanswered.items())
    for text in (*(f"node {name} did not answer: {why}" for name, why in silent), *report.notices):
        sys.stderr.write(f"gpuslice audit: {one_line(text)}\n")
    if not report.findings and 0 < report.asked == len(silent):
        return 2
    return int(bool(report.findings))


async def _read(chosen: argparse.Namespace, access: Access) -> Report:
    async with connecting.connect(chosen, access) as kube:
        return await read(kube, chosen.nodes)


async def read(kube: Kube, nodes: Sequence[str]) -> Report:
    """Read the findings of these nodes; of all for none. Raises KubeError, and LookupError for a
    node without a Device object."""
    reader, report = Reader(kube), Report()
    shown = (await reader.grants()).only(nodes or None, "NODE").nodes
    report.asked = len(shown)

    def take(node: Node, page: bytes) -> None:
        report.findings += parse(page, node.name)

    silent = await reader.pages(shown, take)
    if "use" not in reader.notices:
        report.unanswered = {**silent}
    else:
        report.notices.append(_BY_EVENTS)
        wanted = {node.name for node in shown}
        selected = kube.list(_EVENTS, fieldSelector=f"reason={names.EVENT_LIMIT_BYPASSED}")
        events = [item async for items, _ in selected for item in items]
        report.findings += [each for each in map(_of_event, events) if each.node in wanted]
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


def _of_event(event: Json) -> Found:
    pod, note = at(event, "regarding"), one_line(str(event.get("note", "")))
    about = str(pod.get("namespace", "")), str(pod.get("name", ""))
    container, _, text = note.partition(": ")
    name = container.removeprefix('container "').removesuffix('"')
    return Found(str(event.get("reportingInstance", "")), *about, name, "event", text)


def table(report: Report) -> Iterator[str]:
    """Yield the lines of a table; one line if there are no findings."""
    if not report.findings:
        yield f"no findings on {report.asked - len(report.unanswered)} of {report.asked} nodes"
        return
    rows = [tuple(each.name.upper() for each in fields(Found)), *map(astuple, report.findings)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()
