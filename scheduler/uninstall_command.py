"""The command `uninstall`: flags and output."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from gpuslice.contract import names
from gpuslice.kube import access
from gpuslice.kube.access import AccessError
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from scheduler.uninstall import Uninstallation, UninstallError


def uninstall_command(
    kubeconfig: Annotated[
        str,
        typer.Option(
            "--kubeconfig",
            help="Configuration for the API server. Default: the pod's service account, else"
            " kubectl's.",
            metavar="FILE",
            show_default=False,
        ),
    ] = "",
    namespace: Annotated[
        str, typer.Option("--namespace", help="Of gpuslice's components.", metavar="NAME")
    ] = names.NAMESPACE,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed; change nothing.")
    ] = False,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout",
            help="For the end of the components' pods, or for the nodes, in seconds.",
            metavar="SECONDS",
        ),
    ] = 120.0,
    nodes: Annotated[
        bool,
        typer.Option(
            "--nodes",
            help="Instead wait for the chart's DaemonSet that cleans the nodes, print what it"
            " reports, and delete it.",
        ),
    ] = False,
) -> None:
    """Remove what gpuslice wrote into the cluster, before its manifests are deleted.

    The chart runs it before `helm uninstall`. By hand: `python -m scheduler uninstall`, then
    `kubectl delete -f manifests/install.yaml`. It prints each object that it changes, and what
    stays. It may be repeated. docs/install.md has the whole order.
    """
    try:
        asyncio.run(_uninstall(kubeconfig, namespace, dry_run, timeout_s, nodes))
    except (AccessError, KubeError, UninstallError) as error:
        sys.stderr.write(f"uninstall: {error}\n")
        raise typer.Exit(1) from None


async def _uninstall(
    kubeconfig: str, namespace: str, dry_run: bool, timeout_s: float, nodes: bool
) -> None:
    def print_line(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    async with Kube(access.load(kubeconfig), user_agent="gpuslice-uninstall") as kube:
        work = Uninstallation(kube, namespace, dry_run, timeout_s, print_line)
        await (work.nodes() if nodes else work.run())
