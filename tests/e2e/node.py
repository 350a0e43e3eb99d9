"""Remains of pods and of gpuslice's installation on a cluster's node, and programs' metrics.

Everything is read from outside, through the namespaces of the node's containerd. The cluster must
be healthy.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from gpuslice.contract import names
from lab import pages
from lab.node import cgroups
from tests.e2e.whole import Whole
from tests.load import kinds
from tests.support import until

_NAMESPACES: Final = ("cgroup", "ipc", "mnt", "net", "pid", "uts")
_STRAY: Final = ("not_adjusted", "files_lost", "foreign_gpu", "nvidia_runtime")
_GAUGES: Final[Mapping[str, Sequence[str]]] = {
    "gpuslice extender": (
        'gpuslice_scheduler_gpu_memory_bytes{state="granted"}',
        "gpuslice_scheduler_gpu_core_granted_ratio",
        "gpuslice_scheduler_assumed_pods",
        "gpuslice_scheduler_problems",
    ),
    "gpuslice node agent": (
        "gpuslice_containers_with_grant",
        *(f'gpuslice_stray_containers{{kind="{kind}"}}' for kind in _STRAY),
    ),
}
"""Metrics that are zero while no pods exist."""
_ANSWER_S: Final = 10.0


class Node:
    """A node on which only gpuslice's pods run. Its state at the construction is the reference. A
    pod is run before, because the node's first pod leaves, for example, a bridge and cgroups."""

    def __init__(self, whole: Whole) -> None:
        self._whole = whole
        self._lab = Path(whole.state["directory"])
        own = {*self._of_pods()}
        whole.kubectl("create", "-f", "-", given=json.dumps(kinds.pod("first", "half")))
        whole.ready("first")
        whole.kubectl("delete", "pod", "first")
        until(lambda: {*self._of_pods()} <= own, "the first pod has left the node")
        self._before = self._look()

    def _of_pods(self) -> Sequence[str]:
        """Return the shims' processes and the cgroups of single pods."""
        shims = (each for each in _processes(self._proc) if "containerd-shim" in each)
        groups = _cgroups(self._lab.name)
        return [*shims, *(each for each in groups if "/pod" in each.split("kubepods")[-1])]

    def left(self) -> Sequence[str]:
        """Return what is new on the node since the reference, and grants and GPUs still in use."""
        now = self._look()
        more = (
            f"+ {kind}: {each}"
            for kind in now
            for each in sorted((now[kind] - self._before[kind]).elements())
        )
        return [*more, *self._grants(), *self._gpus()]

    @property
    def _proc(self) -> Path:
        return Path(f"/proc/{self._whole.pid('containerd')}")

    def _look(self) -> Mapping[str, Counter[str]]:
        """Return the node's processes, files and so on as lines of text, counted, by kind."""
        proc = self._proc
        regions = proc / "root" / "run" / names.PLUGIN_NAME
        given = self._lab / "kubelet" / "addresses" / "pods"
        found: Mapping[str, Iterator[str]] = {
            "process": _processes(proc),
            "namespace": _namespaces(proc),
            "mount": _mounts(proc),
            "interface": _interfaces(proc),
            # Socket names contain a number that grows when a program recreates the socket.
            "unix socket": (re.sub(r"\d+", "N", each) for each in _sockets(proc)),
            "cgroup": _cgroups(self._lab.name),
            "region directory": (each.name for each in regions.glob("*")),
            "address": (each.name for each in given.glob("[0-9]*")),
        }
        return {kind: Counter(lines) for kind, lines in found.items()}

    def _grants(self) -> Iterator[str]:
        for part, gauges in _GAUGES.items():
            text = pages.get(self._whole.state["pages"][part], "/metrics", _ANSWER_S)[1]
            values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[:1] != "#")
            for gauge in gauges:
                if float(values.get(gauge, "0")) != 0:
                    yield f"{part}: {gauge} {values[gauge]}"

    def _gpus(self) -> Iterator[str]:
        for gpu in ask_gpus(self._lab, {"op": "status"})["gpus"]:
            if gpu["used_bytes"] or gpu["clients"]:
                yield f"GPU {gpu['minor']}: {gpu['used_bytes']} bytes, {gpu['clients']} clients"


def ask_gpus(lab: Path, request: Mapping[str, Any]) -> Mapping[str, Any]:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(_ANSWER_S)
        asking.connect(str(lab / "sim" / "control.sock"))
        asking.sendall(json.dumps(request).encode() + b"\n")
        with asking.makefile("rb") as answering:
            answer: Mapping[str, Any] = json.loads(answering.readline())
    return answer


def _pids(proc: Path) -> Iterator[Path]:
    """Yield the processes in the PID namespace of the given process."""
    own = os.readlink(proc / "ns" / "pid")
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # the process has exited
            if entry.name.isdigit() and os.readlink(entry / "ns" / "pid") == own:
                yield entry


def _processes(proc: Path) -> Iterator[str]:
    for entry in _pids(proc):
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            yield f"{command.strip()[:200]}{' (zombie)' * (state == 'Z')}"


def _namespaces(proc: Path) -> Iterator[str]:
    """Yield each namespace of the node's processes once, and the network namespaces with names."""
    found = set()
    for entry in _pids(proc):
        for kind in _NAMESPACES:
            with suppress(OSError):
                found.add(os.readlink(entry / "ns" / kind))
    yield from found
    yield from (f"netns {each.name}" for each in (proc / "root" / "run" / "netns").glob("*"))


def _mounts(proc: Path) -> Iterator[str]:
    for line in (proc / "mountinfo").read_text().splitlines():
        words = line.split()
        yield f"{words[4]} ({words[words.index('-') + 1]}, {words[5]})"


def _interfaces(proc: Path) -> Iterator[str]:
    for line in (proc / "net" / "dev").read_text().splitlines()[2:]:
        yield line.partition(":")[0].strip()


def _sockets(proc: Path) -> Iterator[str]:
    """Yield the addresses of bound Unix sockets: paths, and abstract names."""
    for line in (proc / "net" / "unix").read_text().splitlines()[1:]:
        yield from line.split(maxsplit=7)[7:]


def _cgroups(name: str) -> Iterator[str]:
    for group in cgroups.named(name):
        yield str(group)
        yield from (str(inner) for inner in group.rglob("*") if inner.is_dir())


# --- the installation

_OF_PODS: Final = (
    *("/var/lib/kubelet/pods/", "/var/lib/cni/", "/var/log/"),
    *("/run/containerd/", "/run/netns/", "/var/lib/kubelet/device-plugins/kubelet"),
    "/dev/termination-log",
)
"""Directories of the kubelet and of containerd, which change with every pod, and the file on which
they mount a pod's message if the pod has the node's /dev."""
_SYSTEM: Final = f"--namespace={names.NAMESPACE}"


def files(whole: Whole) -> Sequence[str]:
    """Return the files that were written on the node since the lab made it, without pods' files."""
    layers = Path(whole.state["directory"]) / "root"
    found = []
    for layer in layers.glob("layer-of-*"):
        place = layer.name.removeprefix("layer-of").replace("-", "/")
        for directory, _, inside in os.walk(layer / "upper"):
            where = place + directory.removeprefix(str(layer / "upper"))
            found += [f"{where}/{name}" for name in inside if not _is_gone(directory, name)]
    return sorted(each for each in found if not each.startswith(_OF_PODS))


def _is_gone(directory: str, name: str) -> bool:
    """Return whether the file is a character device, by which overlayfs marks a deleted file."""
    return stat.S_ISCHR(os.lstat(os.path.join(directory, name)).st_mode)


def new_files(whole: Whole, before: Sequence[str]) -> Sequence[str]:
    return sorted({*files(whole)} - {*before})


def is_clean(whole: Whole, before: Sequence[str], of_hooks: bool = True) -> None:
    """Check that the node has nothing of gpuslice, and that the Device CRD still exists.
    of_hooks: whether to also check what only the chart's hooks remove."""

    def named(kinds: str, *options: str) -> str:
        return whole.kubectl("get", kinds, *options, "--output=name")

    for of, place in (
        ("koordinator", "status.capacity"),
        ("koordinator", "status.allocatable"),
        ("gpuslice.io", "metadata.labels"),
    ):
        path = f"--output=jsonpath={{.{place}}}"
        assert of not in whole.kubectl("get", "node", whole.state["node"], path), place
    kinds = "validatingadmissionpolicies,validatingadmissionpolicybindings,clusterroles"
    kinds += ",clusterrolebindings,priorityclasses,flowschemas,prioritylevelconfigurations"
    made = (each.rpartition("/")[2] for each in named(kinds).split())
    assert {each for each in made if "gpuslice" in each} <= {"gpuslice-writer"}
    in_system = "deployments,daemonsets,jobs,serviceaccounts,configmaps,roles"
    assert "gpuslice" not in named(in_system + ",leases" * of_hooks, _SYSTEM)
    assert named(names.DEVICE_PLURAL) == ""
    until(lambda: not named("pods", _SYSTEM), "its pods are gone")
    assert new_files(whole, before) == []
