"""The flags and the connection that the commands about a cluster have in common."""

from __future__ import annotations

import argparse

from gpuslice.kube import access
from gpuslice.kube.client import Kube


def parser(prog: str, description: str, namespace: str, about: str) -> argparse.ArgumentParser:
    """Return a parser of --namespace and --kubeconfig. namespace: the default, with its help."""
    made = argparse.ArgumentParser(
        prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("-n", "--namespace", default=namespace, metavar="NAME", help=about)
    made.add_argument("--kubeconfig", default="", metavar="FILE", help="default: kubectl's")
    return made


def connect(kubeconfig: str, command: str) -> Kube:
    """Return a client that reads the kubeconfig again when its credentials expire. Raises
    AccessError."""

    def load() -> access.Access:
        return access.load(kubeconfig)

    return Kube(load(), load, user_agent=f"gpuslice-{command}")
