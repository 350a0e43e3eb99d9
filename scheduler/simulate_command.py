"""`python -m scheduler simulate`: reads files or the cluster, and prints the account."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer
import yaml
from rich.console import Console
from rich.table import Table

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
    SimulationError,
    fleet,
    names_shown,
    objects,
    pods,
    simulate,
    size,
)

_KINDS: Final = {
    cache.NODES: "Node",
    cache.DEVICES: "Device",
    cache.LEASES: "Lease",
    cache.PODS: "Pod",
}
_SHOWN: Final = 10
_UNCUT: Final = 10_000
"""Columns at which tables are cut. The default without a terminal, 80, would truncate UUIDs."""


class FlagError(typer.BadParameter):
    """A flag's value is invalid; printed without click's own "Invalid value"."""

    def __init__(self, flag: str, problem: str) -> None:
        super().__init__(f"{flag}: {problem}")

    def format_message(self) -> str:
        return self.message


def enabled(text: str) -> frozenset[str]:
    """The value of --dialects, of `serve` too."""
    found, known = frozenset(each.strip() for each in text.split(",")), [d.name for d in DIALECTS]
    if KOORDINATOR.name not in found or not found <= set(known):
        raise FlagError(
            "--dialects",
            f"invalid value {text!r}: must be {KOORDINATOR.name}, and any of"
            f" {', '.join(known[1:])}",
        )
    return found


def simulate_command(
    file: Annotated[
        list[Path],
        typer.Option(
            "-f",
            "--file",
            metavar="FILE",
            help="Pods or workloads with a pod's template, as YAML or JSON; - is standard input.",
        ),
    ],
    fleet_file: Annotated[
        Path | None,
        typer.Option(
            "--fleet",
            metavar="FILE",
            help="Nodes and Devices, optionally Leases and Pods: the output of"
            " `kubectl get nodes,devices,leases,pods -A -o yaml`. Without Leases, every agent is"
            " ready; otherwise a node is excluded if its agent's Lease was renewed more than"
            " 40 s before the latest one.",
        ),
    ] = None,
    from_cluster: Annotated[
        bool,
        typer.Option(
            "--from-cluster",
            help="Read the cluster. A node is excluded if its agent's Lease was renewed more than"
            " 40 s ago by this machine's clock.",
        ),
    ] = False,
    copies: Annotated[
        int, typer.Option("--copies", min=1, max=10_000, help="Number of times to place each pod.")
    ] = 1,
    policy: Annotated[
        Policy, typer.Option("--policy", help="Policy for pods without its annotation.")
    ] = Policy.BINPACK,
    dialects: Annotated[
        str,
        typer.Option("--dialects", metavar="NAMES", help="As of `serve`."),
    ] = KOORDINATOR.name,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    kubeconfig: Annotated[
        str, typer.Option("--kubeconfig", metavar="FILE", help="For --from-cluster.")
    ] = "",
) -> None:
    """Show where pods would be placed, GPU by GPU, and why other nodes are refused. Changes
    nothing.

    The decision is the scheduler's own. kube-scheduler's other criteria (affinity, taints,
    processors, volumes) are not evaluated: it may rule out a node that is listed here.

    The exit status is 1 if a pod fits nowhere, 2 if the input is unreadable.
    """
    try:
        if from_cluster == (fleet_file is not None):
            raise SimulationError("fleet: must be one of --fleet FILE and --from-cluster")
        asked = pods(objects(each for path in file for each in _documents(path)))
        if fleet_file is not None:
            state = fleet(objects(_documents(fleet_file)))
        else:
            now_s = time.time()
            state = fleet(asyncio.run(everything(kubeconfig)), now_s)
    except (SimulationError, AccessError, KubeError, OSError) as error:
        sys.stderr.write(f"simulate: {error}\n")
        raise typer.Exit(2) from None
    repeated = [pod for pod in asked for _ in range(copies)]
    on = enabled(dialects)
    accounts = [simulate(state, pod, n, policy, on) for n, pod in enumerate(repeated)]
    if json_:
        sys.stdout.write(json.dumps([asdict(each) for each in accounts], indent=2) + "\n")
    else:
        console = Console(highlight=False, soft_wrap=True, width=_UNCUT)
        for account in accounts:
            _show(console, account)
    if not all(each.placed for each in accounts):
        raise typer.Exit(1)


def _documents(path: Path) -> Iterable[object]:
    """Raises SimulationError, OSError."""
    written = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return list(yaml.load_all(written.decode(), loader))
    except (ValueError, yaml.YAMLError) as error:
        raise SimulationError(f"{path}: {error}") from None


async def everything(kubeconfig: str) -> Sequence[Json]:
    """All objects of the cluster that a simulation reads. Raises AccessError, KubeError."""
    found: list[Json] = []
    async with Kube(access.load(kubeconfig), user_agent="gpuslice-scheduler") as kube:
        for path, kind in _KINDS.items():
            async for items, _ in kube.list(path):
                found += [{**item, "kind": kind} for item in items]
    return found


def _show(console: Console, account: Account) -> None:
    if account.error:
        console.print(f"{account.pod}: refused, on every node", markup=False)
        console.print(f"  {account.error}", markup=False)
        return
    if not account.requests_share:
        console.print(f"{account.pod}: requests no share of a GPU; fits on any node", markup=False)
        return
    if account.candidates:
        console.print(f"{account.pod}: {account.node}", markup=False)
        console.print(_candidates(account))
    else:
        console.print(f"{account.pod}: no node has enough free GPU capacity", markup=False)
    for refusal in account.refused:
        count = f"{len(refusal.nodes)} node" + ("s" if len(refusal.nodes) > 1 else "")
        shown = names_shown(refusal.nodes)
        console.print(f"  {count}: {refusal.text}: {shown}", markup=False)


def _candidates(account: Account) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("  node", "score", "container", "gpu", "memory", "core"):
        table.add_column(heading, no_wrap=True)
    for candidate in account.candidates[:_SHOWN]:
        for number, share in enumerate(candidate.containers):
            core = "no cap" if share.core_percent is None else f"{share.core_percent} %"
            table.add_row(
                f"  {candidate.node}" if not number else "",
                f"{candidate.score:.2f}" if not number else "",
                share.container,
                f"{share.minor} {share.uuid}",
                size(share.memory_bytes),
                core,
            )
    more = len(account.candidates) - _SHOWN
    if more > 0:
        table.add_row(f"  and {more} more")
    return table
