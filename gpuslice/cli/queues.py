"""The command `gpuslice queues`: KAI's Queues as a tree, and their translation for Kueue."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import yaml

from gpuslice.cli import connecting, queue_state
from gpuslice.cli.cluster import one_line
from gpuslice.cli.first_lists import DEVICES
from gpuslice.cli.queue_state import LOCAL_QUEUES, QUEUES, WORKLOADS, State
from gpuslice.kube.access import Access
from gpuslice.kube.errors import NOT_FOUND, KubeError
from gpuslice.kube.fields import Json
from scheduler.decisions.simulate import SimulationError, objects
from scheduler.queues import kueue, tree
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
_COLUMNS: Final = ("share", "used", "wanted", "limit", "waiting")
_LABELS: Final = dict.fromkeys(kueue.LABELS, "kubectl")
"""The scheduler removes objects with its own label."""


def main(arguments: Sequence[str], prog: str) -> int:
    converts = arguments[:1] == ["convert"]
    parser = connecting.parser(prog, "queues", _CONVERT if converts else _DESCRIPTION)
    if converts:
        parser.prog += " convert"
        parser.add_argument("-f", "--file", type=Path, help="Queues; - is standard input")
        parser.add_argument("--gpus", type=int, help="default: the cluster's healthy GPUs")
    else:
        parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    chosen = parser.parse_args(arguments[converts:])
    try:
        if converts and chosen.file and chosen.gpus is not None:
            return _convert(chosen)  # needs no cluster
        return connecting.run(_convert if converts else _show, chosen, failed=2)
    except (SimulationError, OSError) as error:
        sys.stderr.write(f"gpuslice queues: {error}\n")
        return 2


def _show(chosen: argparse.Namespace, access: Access) -> int:
    paths = (QUEUES, WORKLOADS, LOCAL_QUEUES, DEVICES)
    there = asyncio.run(_listed(chosen, access, *paths))
    gpus = queue_state.healthy(there[DEVICES])
    state = queue_state.read(there[QUEUES], there[WORKLOADS], there[LOCAL_QUEUES], gpus)
    found = {"gpus": gpus, "queues": queue_state.rows(state)}
    is_json = chosen.output == "json"
    sys.stdout.writelines(
        f"{line}\n" for line in ([json.dumps(found, indent=1)] if is_json else lines(state))
    )
    return 0


def lines(state: State) -> Iterator[str]:
    """Yield the lines of the table."""
    tops = [state.uses[name] for name in state.tree.children.get("", ())]
    used, waiting = sum(use.allocated for use in tops), sum(use.waiting for use in tops)
    gpus = f"{kueue.gpus(used)} of {kueue.gpus(state.capacity)} GPUs used"
    yield f"queues: {len(state.tree.queues)}; {gpus}; waiting: {waiting}"
    table = [("queue", "quota", *_COLUMNS)]
    for row in queue_state.rows(state):
        if (name := row["name"]) in state.shared:
            indent = "  " * (len([*state.tree.path(name)]) - 1)
            cut = f" of {row['quota']:g}" if state.shared[name].scaled else ""
            others = ("-" if row[key] is None else f"{row[key]:g}" for key in _COLUMNS)
            table.append((indent + name, f"{row['guaranteed']:g}{cut}", *others))
    width = max(len(name) for name, *_ in table)
    for name, quota, *figures in table:
        yield f"{name:{width}} {quota:>14}" + "".join(f" {each:>8}" for each in figures)
    for name, problem in state.problems.items():
        yield f"{name}: {one_line(problem)}"


def _convert(chosen: argparse.Namespace, access: Access | None = None) -> int:
    paths = [] if chosen.file else [QUEUES, LOCAL_QUEUES]
    paths += [DEVICES] if chosen.gpus is None else []
    there = asyncio.run(_listed(chosen, access, *paths)) if access else {}
    gpus = queue_state.healthy(there[DEVICES]) if chosen.gpus is None else chosen.gpus
    queues, kind = there.get(QUEUES, ()), (tree.API_VERSION, "Queue")
    if chosen.file:
        found = objects(documents(chosen.file))
        queues = [each for each in found if (each.get("apiVersion"), each["kind"]) == kind]
    if not queues:
        raise SimulationError(f"no Queue of {tree.API_VERSION} found")
    built = tree.build(queues, kueue.ROOT)
    local = queue_state.locals_of(there.get(LOCAL_QUEUES, ()))
    sys.stdout.writelines(f"{line}\n" for line in converted(built, gpus, local))
    return int(bool(built.faults))


def converted(built: tree.Tree, gpus: int, local: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield Kueue's objects as YAML, behind comments about what has no counterpart. local:
    namespace and name of each LocalQueue."""
    shared = kueue.shares(built, gpus * tree.MILLI)
    yield f"# For {gpus} GPUs. If their number changes, convert the Queues again."
    for name, queue in sorted(built.queues.items()):
        fault = built.faults.get(name)
        said = [f"not converted: {fault.message}"] if fault else [e.message for e in queue.notes]
        if not fault and shared[name].scaled:
            said.append(kueue.scaled_text(queue, shared[name]))
        yield from (f"# queue {name}: {one_line(text)}" for text in said)
    for each in kueue.objects(built, shared, gpus * tree.MILLI, local):
        each["metadata"]["labels"] = _LABELS
        yield f"---\n{yaml.safe_dump(each, sort_keys=False).rstrip()}"


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
