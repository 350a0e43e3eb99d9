"""Remains of pods on a cluster's node, and the figures of our programs and the GPUs for it.

Read from outside, by the namespaces of its containerd; the cluster must be healthy.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gpuslice.contract import names
from lab import pages
from tests.e2e import machine
from tests.e2e.machine import Found
from tests.e2e.whole import Whole
from tests.load import kinds
from tests.support import until

_KINDS: Final = ("process", "namespace", "mount", "interface", "unix socket")
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
    """A cluster without pods: its state is the reference. A first pod has been created and deleted
    by then, because of what the node creates once: a bridge, groups of pods."""

    def __init__(self, whole: Whole) -> None:
        self._whole = whole
        whole.kubectl("create", "-f", "-", given=json.dumps(kinds.pod("first", "half")))
        whole.ready("first")
        whole.kubectl("delete", "pod", "first")
        until(lambda: not self._of_pods(), "the first pod has left the node")
        self._before = self._look()

    def _of_pods(self) -> Sequence[str]:
        """Resources of a single pod: its shim's process, its cgroups."""
        found = machine.look([self.lab.name], ("process",), str(self._whole.pid("containerd")))
        shims = (each for each in found["process"] if "containerd-shim" in each)
        return [*shims, *(each for each in found["cgroup"] if "/pod" in each.split("kubepods")[-1])]

    def left(self) -> Sequence[str]:
        """Additions since the beginning, and figures that are not zero: one line each."""
        more = [line for line in machine.left(self._before, self._look()) if line[0] == "+"]
        return [*more, *self._grants(), *self._gpus()]

    @property
    def lab(self) -> Path:
        return Path(self._whole.state["directory"])

    def _look(self) -> Found:
        found = dict(machine.look([self.lab.name], _KINDS, str(self._whole.pid("containerd"))))
        inside = Path(f"/proc/{self._whole.pid('containerd')}/root")
        # Objects that programs recreate have a creation number in their name.
        found["unix socket"] = machine.counted(
            re.sub(r"\d+", "N", each) for each in found["unix socket"].elements()
        )
        regions = inside / "run" / names.PLUGIN_NAME
        given = self.lab / "kubelet" / "addresses" / "pods"
        return {
            **found,
            "region directory": machine.counted(_names(regions, "*")),
            "address": machine.counted(_names(given, "[0-9]*")),
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


def _names(directory: Path, which: str) -> Iterator[str]:
    return (each.name for each in directory.glob(which))
