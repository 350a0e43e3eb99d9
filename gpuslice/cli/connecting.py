"""The flags, the connection and the errors that the commands about a cluster have in common."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuslice.contract import names
from gpuslice.kube import access
from gpuslice.kube.access import Access, AccessError
from gpuslice.kube.errors import FORBIDDEN, KubeError

if TYPE_CHECKING:
    from gpuslice.kube.client import Kube


def parser(
    prog: str, command: str, description: str, namespace: str = ""
) -> argparse.ArgumentParser:
    """Return a parser of the common flags. namespace: the help of --namespace; "": it has none."""
    made = argparse.ArgumentParser(
        prog=f"{prog} {command}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.set_defaults(command=command)
    if namespace:
        made.add_argument("-n", "--namespace", default="", metavar="NAME", help=namespace)
    made.add_argument("--context", default="", metavar="NAME", help="of the kubeconfig")
    made.add_argument("--kubeconfig", default="", metavar="FILE", help="default: kubectl's")
    return made


def run(
    work: Callable[[argparse.Namespace, Access], int], chosen: argparse.Namespace, failed: int = 1
) -> int:
    """Run a command, and return its exit status; after an error, which is printed, `failed`."""
    try:
        return work(chosen, _access(chosen))
    except (AccessError, KubeError, LookupError, OSError, OverflowError) as error:
        missing = isinstance(error, KubeError) and error.status == FORBIDDEN
        hint = f" (the ClusterRole {names.VIEWER} has this right)" if missing else ""
        sys.stderr.write(f"gpuslice {chosen.command}: {error}{hint}\n")
        return failed
    except KeyboardInterrupt:
        return 0


def connect(chosen: argparse.Namespace, first: Access) -> Kube:
    """Return a client that reads the kubeconfig again when its credentials expire."""
    from gpuslice.kube.client import Kube

    return Kube(first, lambda: _access(chosen), user_agent=f"gpuslice-{chosen.command}")


def _access(chosen: argparse.Namespace) -> Access:
    return access.load(chosen.kubeconfig, context=chosen.context)
