"""The command `gpuslice queues`: KAI's Queues as a tree, and their translation for Kueue.

The figures are the scheduler's, in the Queues' status.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import yaml

from gpuslice.cli import connecting
from gpuslice.cli.cluster import one_line
from gpuslice.cli.queue_state import LOCAL_QUEUES
from gpuslice.kube.access import Access
from gpuslice.kube.errors import NOT_FOUND, KubeError
from gpuslice.kube.fields import Json, at
from scheduler.decisions.simulate import SimulationError, objects
from scheduler.queues import figures, kueue, tree
from scheduler.queues.tree import QUEUES
from scheduler.simulate_command import documents

_DESCRIPTION: Final = """\
Show KAI's Queues as a tree, in GPUs: the quota, the fair share of what is wanted now, what is used
and wanted, the limit, and how many Workloads wait. "5 of 8" is a quota that was cut to fit.
`gpuslice queues convert` prints Kueue's objects for the Queues.
"""
_CONVERT: Final = """\
Print Kueue's objects for KAI's Queues, as the scheduler writes them. The scheduler does not manage
the printed objects. The exit status is 1 if a Queue was not converted, 2 if nothing was read.
"""
_LABELS: Final = dict.fromkeys(kueue.LABELS, "kubectl")
"""The scheduler removes objects with its own label."""


def main(arguments: Sequence[str], prog: str) -> int:
    converts = arguments[:1] == ["convert"]
    parser = connecting.parser(prog, "queues", _CONVERT if converts else _DESCRIPTION)
    if converts:
        parser.prog += " convert"
        parser.add_argument("-f", "--file", type=Path, help="Queues; - is standard input")
        parser.add_argument("--gpus", type=int, help="default: what the scheduler counted")
    else:
        parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    chosen = parser.parse_args(arguments[converts:])
    try:
        if converts and chosen.file:
            return _convert(chosen)
        return connecting.run(_convert if converts else _show, chosen, failed=2)
    except (SimulationError, OSError) as error:
        sys.stderr.write(f"gpuslice queues: {error}\n")
        return 2


def _show(chosen: argparse.Namespace, access: Access) -> int:
    queues = asyncio.run(_listed(chosen, access, QUEUES))[QUEUES]
    if chosen.output == "json":
        sys.stdout.write(json.dumps({"queues": [*rows(queues)]}, indent=1) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in lines(queues))
    return 0


def rows(raws: Sequence[Json]) -> Iterator[Json]:
    """Yield each queue as `-o json` shows it. Amounts are GPUs; -1 is unlimited."""
    queues = figures.restore(raws)
    for raw in raws:
        queue = queues[at(raw, "metadata")["name"]]
        quota = at(at(at(raw, "spec"), "resources"), "gpu").get("quota", 0)
        shown = figures.shown(queue, queues[""].guaranteed)
        problem = queue.fault.message if queue.fault else ""
        about = {"name": queue.name, "parent": queue.parent, "quota": quota}
        yield {**about, **shown, "problem": problem}


def lines(raws: Sequence[Json]) -> Iterator[str]:
    """Yield the lines of the table."""
    queues = figures.restore(raws)
    root = queues[""]
    used = f"{kueue.gpus(root.used)} of {kueue.gpus(root.guaranteed)} GPUs used"
    yield f"queues: {len(raws)}; {used}; waiting: {root.waiting}"
    table = [("queue", "quota", "share", "used", "wanted", "limit", "waiting")]
    for each in root.tree():
        name = "  " * (len([*each.path()]) - 2) + each.name
        cut = f" of {kueue.asked(each)}" * kueue.is_cut(each)
        limit = "-" if each.most is None else kueue.gpus(each.most)
        amounts = map(kueue.gpus, (each.guaranteed, round(each.share), each.used, each.wanted))
        quota, share, used, wanted = amounts
        table.append((name, quota + cut, share, used, wanted, limit, str(each.waiting)))
    width = max(len(name) for name, *_ in table)
    for name, quota, *others in table:
        yield f"{name:{width}} {quota:>14}" + "".join(f" {each:>8}" for each in others)
    for each in queues.values():
        if each.fault:
            yield f"{each.name}: {one_line(each.fault.message)}"


def _convert(chosen: argparse.Namespace, access: Access | None = None) -> int:
    if access:
        there = asyncio.run(_listed(chosen, access, QUEUES, LOCAL_QUEUES))
    else:
        found, kind = objects(documents(chosen.file)), (tree.API_VERSION, "Queue")
        there = {QUEUES: [e for e in found if (e.get("apiVersion"), e["kind"]) == kind]}
    if chosen.gpus is not None and chosen.gpus < 1:
        raise SimulationError(f"--gpus: invalid value {chosen.gpus}: must be at least 1")
    if not there[QUEUES]:
        raise SimulationError(f"no Queue of {tree.API_VERSION} found")
    counted = figures.restore(there[QUEUES])[""].guaranteed
    if not (milli := counted if chosen.gpus is None else chosen.gpus * tree.MILLI):
        raise SimulationError("--gpus: must be given: no Queue's status has the number of GPUs")
    queues, local = tree.build(there[QUEUES]), figures.locals_of(there.get(LOCAL_QUEUES, ()))
    kueue.divide(queues, milli)
    out = sys.stdout.write
    out(f"# For {kueue.gpus(milli)} GPUs. If their number changes, convert the Queues again.\n")
    for name, queue in sorted(queues.items()):
        fault, said = queue.fault, [each.message for each in kueue.notes(queue)]
        for text in [f"not converted: {fault.message}"] if fault else said:
            out(f"# queue {name}: {one_line(text)}\n")
    for each in kueue.objects(queues, local):
        each["metadata"]["labels"] = _LABELS
        out(f"---\n{yaml.safe_dump(each, sort_keys=False)}")
    return int(any(each.fault for each in queues.values()))


async def _listed(
    chosen: argparse.Namespace, access: Access, *paths: str
) -> Mapping[str, Sequence[Json]]:
    """Return the objects of each path; none if their kind is not defined."""
    found: dict[str, Sequence[Json]] = dict.fromkeys(paths, ())
    async with connecting.connect(chosen, access) as kube:
        for path in paths:
            try:
                found[path] = [each async for page, _ in kube.list(path) for each in page]
            except KubeError as error:
                if error.status != NOT_FOUND:
                    raise
    return found
