"""`make cluster`: a Kubernetes cluster of one node on this machine, private to its directory.

    up        start it, unless it runs
    status    list its parts and their problems
    down      remove all of it

One background process owns all parts of the cluster (running.py). It restarts parts that exit. When
it ends or is killed, everything is removed (owner.py).
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from typing import Final

from gpuslice.contract.dialects import DIALECTS
from lab.cluster.directory import ClusterDirectory, ClusterStatus, DirectoryError, add_option
from lab.cluster.owner import Owner, OwnerError
from lab.cluster.product import GPU_NODE_LABEL, Wanted
from lab.node import network
from lab.node.catalogue import PYTHON_IMAGE
from simgpu import config
from tools import kubernetes, programs
from tools.building import ProgramsError
from tools.programs import DEFAULT
from tools.progress import step

_GPUS: Final = "2x23040Mi"
_SWITCHED: Final = [dialect.name for dialect in DIALECTS if dialect.switch]
_FORM: Final = f"must be COUNTxSIZE, as in {_GPUS}"
_ABSENT: Final = 3
"""The exit status of `status` if there is no cluster. Service managers use the same number."""


class CommandError(Exception):
    """The command failed. The message has the reason and what to do."""


def gpus(text: str) -> list[int]:
    """Return each GPU's bytes, from text like `2x23040Mi`, `40Gi` or `2x40Gi,1x80Gi`."""
    sizes: list[int] = []
    for group in text.split(","):
        matched = re.fullmatch(r"(?:([0-9]{1,9})x)?(.+)", group)
        if matched is None:
            raise CommandError(f"--gpus: invalid value {text!r}: {_FORM}")
        try:
            # A larger count becomes MAX_GPUS + 1, so that the list of sizes stays short.
            count = min(int(matched[1] or 1), config.MAX_GPUS + 1)
            sizes += [config.parse_bytes(matched[2], "--gpus")] * count
        except config.ConfigError as error:
            raise CommandError(f"{error}; the option {_FORM}") from error
    if not sizes:
        raise CommandError(f"--gpus: invalid value {text!r}: must be at least one GPU")
    try:
        config.load(config.DEFAULT_FILE).with_gpus(sizes)
    except config.ConfigError as error:
        raise CommandError(f"--gpus: invalid value {text!r}: {error}") from error
    return sizes


def dialects(text: str) -> list[str]:
    chosen = [name for name in text.split(",") if name]
    for name in sorted({*chosen} - {*_SWITCHED}):
        must = f"must be some of {', '.join(_SWITCHED)}"
        raise CommandError(f"--dialects: invalid value {name!r}: {must}")
    return chosen


def up(directory: ClusterDirectory, asked: Wanted) -> None:
    """Return when the cluster runs. Empty fields of `asked` keep the previous cluster's values, or
    get the defaults."""
    if os.geteuid() != 0:
        raise CommandError("namespaces and containerd need root: sudo make cluster")
    with directory.changing():  # an unusable directory is reported before anything is built
        programs.ensure()
        kubernetes.ensure()
        status = directory.read_status()
        if status.exists and not status.is_healthy:
            status = _repaired(directory, status)
        if status.is_healthy:
            if other := _other(status, asked):
                raise CommandError(
                    f"a cluster runs in {directory.path} with other {other}; "
                    f"make cluster-down{directory.advice} ends it"
                )
            _print(f"a cluster runs in {directory.path} already\n")
        else:
            had, served = status.state, asked.served
            if served is not None:
                served = served or had.get("served") or ()
            sizes = asked.gpus or had.get("gpus") or gpus(_GPUS)
            wanted = Wanted(sizes, served, asked.dialects or had.get("dialects") or ())
            owner = Owner(directory, wanted)
            owner.wait_ready(_print)
            owner.let_go()
    _print(_how_to_use(directory, directory.read_status()))


def _other(status: ClusterStatus, asked: Wanted) -> str:
    """Return how the running cluster differs from `asked`; "" if every requested field matches."""
    served, on = status.state["served"], status.state["dialects"]
    if asked.gpus and list(asked.gpus) != status.state["gpus"]:
        return f"GPUs ({_of(status)})"
    if (asked.served is None) != (served is None):
        return "programs: gpuslice" if asked.served is None else "programs: without gpuslice"
    if asked.served and set(asked.served) != set(served):
        return f"schedulerNames served beside gpuslice's own ({', '.join(served) or 'none'})"
    if asked.dialects and set(asked.dialects) != set(on):
        return f"dialects on beside Koordinator's ({', '.join(on) or 'none'})"
    return ""


def _repaired(directory: ClusterDirectory, status: ClusterStatus) -> ClusterStatus:
    """Return the cluster's status after its owner had time to repair it. An unrepaired cluster is
    removed."""
    for problem in status.problems:
        _print(f"the cluster in {directory.path} is broken: {problem}\n")
    end_s = time.monotonic() + 90.0
    if status.owner is not None:
        with step("waiting until it is healthy") as shown:
            while not status.is_healthy and status.owner is not None and time.monotonic() < end_s:
                time.sleep(0.5)
                status = directory.read_status()
            shown.failed = not status.is_healthy
    if not status.is_healthy:
        with step("removing what is left of it"):
            directory.empty()
    return status


def _how_to_use(directory: ClusterDirectory, status: ClusterStatus) -> str:
    kubectl = str(status.state["kubectl"])
    lines = [
        f"one node, {_of(status)} (simulated), containerd {DEFAULT.version}, "
        f"Kubernetes {kubernetes.VERSION}; images: busybox, ubuntu, {PYTHON_IMAGE}",
        "",
        f"  export KUBECONFIG={shlex.quote(str(directory.kubeconfig))}",
    ]
    if network.proxied(os.environ):
        lines.append(f"  export NO_PROXY={network.ADDRESSES}")
    if shutil.which("kubectl") != kubectl:
        lines.append(f"  alias kubectl={shlex.quote(kubectl)}")
    if status.state["served"] is None:
        values = shlex.quote(status.state["values"])
        lines += [
            f"  alias helm={shlex.quote(str(kubernetes.ensure_helm()))}",
            f"  kubectl label node {status.state['node']} {GPU_NODE_LABEL}",
            "  helm install gpuslice manifests/chart -n gpuslice-system --create-namespace \\",
            f"    --values {values} --wait",
        ]
    lines += [
        "  kubectl get nodes",
        "  kubectl run hello --image=busybox -- sleep 1d",
        "  kubectl exec -it hello -- bash",
        "",
        f"logs: {status.state['directory']}; make cluster-down{directory.advice} ends it\n",
    ]
    return "\n".join(lines)


def _of(status: ClusterStatus) -> str:
    sizes: list[int] = status.state["gpus"]
    counted = {size: sizes.count(size) for size in sizes}
    groups = [f"{count} of {size >> 20} MiB" for size, count in counted.items()]
    return f"GPUs: {', '.join(groups)}"


def down(directory: ClusterDirectory) -> None:
    with directory.changing(make=False):
        if not directory.path.exists():
            _print(f"no cluster in {directory.path}\n")
            return
        with step(f"ending the cluster in {directory.path}"):
            directory.clear()


def show_status(directory: ClusterDirectory) -> int:
    """Return 0 if the cluster runs, 1 if it is broken or still starting, 3 if there is none."""
    status = directory.read_status()
    if not status.exists:
        _print(f"no cluster in {directory.path}\n")
        return _ABSENT
    for name, part in status.state.get("parts", {}).items():
        again = f", started again {part['restarts']} times" if part["restarts"] else ""
        _print(f"{name:24} {part['pid'] or '-':>8}{again}\n")
    for problem in status.problems:
        _print(f"broken: {problem}\n")
    if not status.ready and status.owner is not None:
        _print("it is being started\n")
    return 0 if status.is_healthy else 1


def _print(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("up", "down", "status"))
    add_option(parser)
    parser.add_argument("--gpus", metavar="COUNTxSIZE", help=f"by default {_GPUS}")
    serve = "a schedulerName whose pods gpuslice schedules too; repeatable"
    parser.add_argument("--serve", action="append", default=[], metavar="NAME", help=serve)
    switched = f"dialects to turn on, beside Koordinator's: {', '.join(_SWITCHED)}"
    parser.add_argument("--dialects", default="", metavar="NAME,NAME", help=switched)
    bare = "without gpuslice, to try the installation"
    parser.add_argument("--bare", action="store_true", help=bare)
    given = parser.parse_args(arguments)
    try:
        directory = ClusterDirectory(given.at)
        if given.command == "up":
            sizes = gpus(given.gpus) if given.gpus else ()
            served = None if given.bare else given.serve
            up(directory, Wanted(sizes, served, dialects(given.dialects)))
        elif given.command == "down":
            down(directory)
        else:
            return show_status(directory)
    except (CommandError, OwnerError, DirectoryError, ProgramsError) as error:
        _print(f"cluster: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
