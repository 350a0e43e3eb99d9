"""`python -m scheduler simulate`: reads files or the cluster, and prints each pod's placement."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import yaml

from gpuslice.contract.dialects import DIALECTS, KOORDINATOR
from gpuslice.kube import access
from gpuslice.kube.access import AccessError
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from gpuslice.kube.fields import Json
from scheduler import cache
from scheduler.core.request import Policy
from scheduler.decisions.simulate import (
    Account,
    Candidate,
    SimulationError,
    fleet,
    names_shown,
    objects,
    pods,
    simulate,
    size,
)
from scheduler.decisions.state import State

KINDS: Final = {
    cache.NODES: "Node",
    cache.DEVICES: "Device",
    cache.LEASES: "Lease",
    cache.PODS: "Pod",
}
_SHOWN: Final = 10

HELP: Final = """\
Show where pods would be placed, GPU by GPU, and why other nodes are refused. Changes nothing.

The decision is the scheduler's own. kube-scheduler's other criteria (affinity, taints, processors,
volumes) are not evaluated: it may rule out a node that is listed here.

The exit status is 1 if a pod fits nowhere, 2 if the input is unreadable.
"""


def add_flags(command: ArgumentParser) -> None:
    command.add_argument(
        "-f",
        "--file",
        type=Path,
        action="append",
        required=True,
        metavar="FILE",
        help="Pods or workloads with a pod's template, as YAML or JSON; - is standard input.",
    )
    command.add_argument(
        "--fleet",
        type=Path,
        metavar="FILE",
        help="Nodes and Devices, optionally Leases and Pods: the output of `kubectl get"
        " nodes,devices,leases,pods -A -o yaml`. Without Leases, every agent is ready; otherwise a"
        " node is excluded if its agent's Lease was renewed more than 40 s before the latest one.",
    )
    command.add_argument(
        "--from-cluster",
        action="store_true",
        help="Read the cluster. A node is excluded if its agent's Lease was renewed more than 40 s"
        " ago by this machine's clock.",
    )
    command.add_argument(
        "--copies", type=int, default=1, help="Number of times to place each pod (default: 1)."
    )
    command.add_argument(
        "--policy",
        type=Policy,
        default=Policy.BINPACK,
        help="Policy for pods without its annotation: binpack (the default), spread or first.",
    )
    command.add_argument(
        "--dialects",
        type=dialects,
        default=KOORDINATOR.name,
        metavar="NAMES",
        help="As of `serve`.",
    )
    command.add_argument("--json", action="store_true", help="Print JSON.")
    command.add_argument("--kubeconfig", default="", metavar="FILE", help="For --from-cluster.")


def dialects(text: str) -> frozenset[str]:
    """Parse the value of --dialects. `serve` uses this function too."""
    chosen, known = frozenset(each.strip() for each in text.split(",")), [d.name for d in DIALECTS]
    if KOORDINATOR.name not in chosen or not chosen <= set(known):
        raise ArgumentTypeError(
            f"invalid value {text!r}: must be {KOORDINATOR.name}, and any of {', '.join(known[1:])}"
        )
    return chosen


def run(flags: Namespace) -> int:
    try:
        asked = pods(objects(each for path in flags.file for each in documents(path)))
        state = _state(flags)
    except (SimulationError, AccessError, KubeError, OSError) as error:
        sys.stderr.write(f"simulate: {error}\n")
        return 2
    repeated = [pod for pod in asked for _ in range(flags.copies)]
    accounts = [
        simulate(state, pod, number, flags.policy, flags.dialects)
        for number, pod in enumerate(repeated)
    ]
    if flags.json:
        sys.stdout.write(json.dumps([asdict(each) for each in accounts], indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for each in accounts for line in _lines(each))
    return 0 if all(each.placed for each in accounts) else 1


def _state(flags: Namespace) -> State:
    if flags.from_cluster == (flags.fleet is not None):
        raise SimulationError("fleet: must be one of --fleet FILE and --from-cluster")
    if flags.fleet is not None:
        return fleet(objects(documents(flags.fleet)))
    now_s = time.time()
    return fleet(asyncio.run(everything(flags.kubeconfig)), now_s)


def documents(path: Path) -> Iterable[object]:
    """Read YAML or JSON documents. Raise SimulationError, OSError."""
    written = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return list(yaml.load_all(written.decode(), loader))
    except (ValueError, yaml.YAMLError) as error:
        raise SimulationError(f"{path}: {error}") from None


async def everything(kubeconfig: str) -> Sequence[Json]:
    """Read all objects of the cluster that a simulation needs. Raise AccessError, KubeError."""
    objects_read: list[Json] = []
    async with Kube(access.load(kubeconfig), user_agent="gpuslice-scheduler") as kube:
        for path, kind in KINDS.items():
            async for items, _ in kube.list(path):
                objects_read += [{**item, "kind": kind} for item in items]
    return objects_read


def _lines(account: Account) -> Iterator[str]:
    if account.error:
        yield f"{account.pod}: refused, on every node"
        yield f"  {account.error}"
        return
    if not account.requests_share:
        yield f"{account.pod}: requests no share of a GPU; fits on any node"
        return
    if account.candidates:
        yield f"{account.pod}: {account.node}"
        yield from _table(account.candidates[:_SHOWN])
        if (more := len(account.candidates) - _SHOWN) > 0:
            yield f"  and {more} more"
    else:
        yield f"{account.pod}: no node has enough free GPU capacity"
    for refusal in account.refused:
        count = f"{len(refusal.nodes)} node" + ("s" if len(refusal.nodes) > 1 else "")
        yield f"  {count}: {refusal.text}: {names_shown(refusal.nodes)}"


def _table(candidates: Sequence[Candidate]) -> Iterator[str]:
    rows = [("node", "score", "container", "gpu", "memory", "core")]
    for candidate in candidates:
        node, score = candidate.node, f"{candidate.score:.2f}"
        for share in candidate.containers:
            core = "no cap" if share.core_percent is None else f"{share.core_percent} %"
            gpu, memory = f"{share.minor} {share.uuid}", size(share.memory_bytes)
            rows.append((node, score, share.container, gpu, memory, core))
            node = score = ""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"  {'  '.join(cells)}".rstrip()
