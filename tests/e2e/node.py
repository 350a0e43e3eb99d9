"""Remains of pods on a cluster's node, and the figures of our programs and the GPUs for it.

Read from outside, by the namespaces of its containerd; the cluster must be healthy.
"""

from __future__ import annotations

import json
import os
import re
import socket
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
_GAUGES: Final[Mapping[str, Sequence[str]]] = {
    "gpuslice extender": (
        'gpuslice_scheduler_gpu_memory_bytes{state="granted"}',
        "gpuslice_scheduler_gpu_core_granted_ratio",
        "gpuslice_scheduler_assumed_pods",
        "gpuslice_scheduler_problems",
    ),
    "gpuslice node agent": (
        "gpuslice_containers_with_grant",
        'gpuslice_stray_containers{kind="not_adjusted"}',
        'gpuslice_stray_containers{kind="files_lost"}',
        'gpuslice_stray_containers{kind="foreign_gpu"}',
        'gpuslice_stray_containers{kind="nvidia_runtime"}',
    ),
}
"""All zero without pods."""
_ANSWER_S: Final = 10.0


class Node:
    """A cluster without pods but gpuslice's: its state is the reference. A first pod has been
    created and deleted by then, because of what the node creates once: a bridge, groups of pods."""

    def __init__(self, whole: Whole) -> None:
        self._whole = whole
        own = {*self._of_pods()}
        whole.kubectl("create", "-f", "-", given=json.dumps(kinds.pod("first", "half")))
        whole.ready("first")
        whole.kubectl("delete", "pod", "first")
        until(lambda: {*self._of_pods()} <= own, "the first pod has left the node")
        self._before = self._look()

    def _of_pods(self) -> Sequence[str]:
        """Resources of single pods: their shims' processes, their cgroups."""
        shims = (each for each in _processes(self._proc) if "containerd-shim" in each)
        groups = _cgroups(self.lab.name)
        return [*shims, *(each for each in groups if "/pod" in each.split("kubepods")[-1])]

    def left(self) -> Sequence[str]:
        """Additions since the beginning, and figures that are not zero: one line each."""
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

    @property
    def lab(self) -> Path:
        return Path(self._whole.state["directory"])

    def _look(self) -> Mapping[str, Counter[str]]:
        """Readable lines, counted, by kind."""
        proc = self._proc
        # Objects that programs recreate have a creation number in their name.
        sockets = (re.sub(r"\d+", "N", each) for each in _sockets(proc))
        regions = proc / "root" / "run" / names.PLUGIN_NAME
        given = self.lab / "kubelet" / "addresses" / "pods"
        return {
            "process": Counter(_processes(proc)),
            "namespace": Counter(_namespaces(proc)),
            "mount": Counter(_mounts(proc)),
            "interface": Counter(_interfaces(proc)),
            "unix socket": Counter(sockets),
            "cgroup": Counter(_cgroups(self.lab.name)),
            "region directory": Counter(each.name for each in regions.glob("*")),
            "address": Counter(each.name for each in given.glob("[0-9]*")),
        }

    def _grants(self) -> Iterator[str]:
        for part, gauges in _GAUGES.items():
            text = pages.get(self._whole.state["pages"][part], "/metrics", _ANSWER_S)[1]
            values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[:1] != "#")
            for gauge in gauges:
                if float(values.get(gauge, "0")) != 0:
                    yield f"{part}: {gauge} {values[gauge]}"

    def _gpus(self) -> Iterator[str]:
        for gpu in ask_gpus(self.lab, {"op": "status"})["gpus"]:
            if gpu["used_bytes"] or gpu["clients"]:
                yield f"GPU {gpu['minor']}: {gpu['used_bytes']} bytes, {gpu['clients']} clients"


def ask_gpus(lab: Path, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer of the simulated GPUs' daemon."""

    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(_ANSWER_S)
        asking.connect(str(lab / "sim" / "control.sock"))
        asking.sendall(json.dumps(request).encode() + b"\n")
        with asking.makefile("rb") as answering:
            answer: Mapping[str, Any] = json.loads(answering.readline())
    return answer


def _pids(proc: Path) -> Iterator[Path]:
    """The processes in that one's PID namespace."""
    own = os.readlink(proc / "ns" / "pid")
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it has exited
            if entry.name.isdigit() and os.readlink(entry / "ns" / "pid") == own:
                yield entry


def _processes(proc: Path) -> Iterator[str]:
    for entry in _pids(proc):
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            yield f"{command.strip()[:200]}{' (zombie)' * (state == 'Z')}"


def _namespaces(proc: Path) -> Iterator[str]:
    """Each once, however many processes are in it; and those that only a name keeps."""
    found = set()
    for entry in _pids(proc):
        for kind in _NAMESPACES:
            with suppress(OSError):
                found.add(os.readlink(entry / "ns" / kind))
    yield from found
    named = proc / "root" / "run" / "netns"
    yield from (f"netns {each.name}" for each in (named.iterdir() if named.is_dir() else ()))


def _mounts(proc: Path) -> Iterator[str]:
    for line in (proc / "mountinfo").read_text().splitlines():
        words = line.split()
        yield f"{words[4]} ({words[words.index('-') + 1]}, {words[5]})"


def _interfaces(proc: Path) -> Iterator[str]:
    for line in (proc / "net" / "dev").read_text().splitlines()[2:]:
        yield line.partition(":")[0].strip()


def _sockets(proc: Path) -> Iterator[str]:
    """Those with a name, in the file system or abstract."""
    lines = (proc / "net" / "unix").read_text().splitlines()[1:]
    rows = (line.split(maxsplit=7) for line in lines)
    return (row[7] for row in rows if len(row) == 8)


def _cgroups(name: str) -> Iterator[str]:
    for group in cgroups.named(name):
        yield str(group)
        yield from (str(inner) for inner in group.rglob("*") if inner.is_dir())
