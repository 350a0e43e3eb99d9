"""`python -m scheduler uninstall`: its flags and its output."""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser, Namespace
from typing import Final

from gpuslice.contract import names
from gpuslice.kube import access
from gpuslice.kube.access import AccessError
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from scheduler.uninstall import Uninstallation, UninstallError

HELP: Final = """\
Remove what gpuslice wrote into the cluster, before its manifests are deleted.

The chart runs it before `helm uninstall`. By hand: `gpuslice uninstall`, then `kubectl delete
-f manifests/install.yaml`. On each node: `python -m nri_plugin uninstall` removes the node's files.
The command prints each object that it changes, and what stays. It may be repeated.
docs/install.md has the whole order.
"""


def add_flags(command: ArgumentParser) -> None:
    command.add_argument(
        "--kubeconfig",
        default="",
        metavar="FILE",
        help="Configuration for the API server. Default: the pod's, else kubectl's.",
    )
    command.add_argument(
        "--namespace",
        default=names.NAMESPACE,
        metavar="NAME",
        help="Of gpuslice's components (default: %(default)s).",
    )
    command.add_argument(
        "--dry-run", action="store_true", help="Print what would be removed; change nothing."
    )
    command.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="For the end of the components' pods, or for the nodes (default: 120).",
    )
    command.add_argument(
        "--nodes",
        action="store_true",
        help="Instead wait for the chart's DaemonSet that cleans the nodes, print what it reports,"
        " and delete it.",
    )


def run(flags: Namespace) -> int:
    try:
        asyncio.run(_uninstall(flags))
    except (AccessError, KubeError, UninstallError) as error:
        sys.stderr.write(f"uninstall: {error}\n")
        return 1
    return 0


async def _uninstall(flags: Namespace) -> None:
    def print_line(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    async with Kube(access.load(flags.kubeconfig), user_agent="gpuslice-uninstall") as kube:
        work = Uninstallation(kube, flags.namespace, flags.dry_run, flags.timeout, print_line)
        await (work.nodes() if flags.nodes else work.run())
