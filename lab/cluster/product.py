"""gpuslice on the lab's cluster, installed as its users install it: images, chart, Helm.

The values differ from the chart's defaults where a small machine without kube-proxy and without a
real GPU needs it. A program of the product is a process in a pod; the kubelet restarts it, and this
module finds its process number, by the cluster's mark in its environment.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from contract import names
from lab.cluster.controlplane import ControlPlane
from lab.node import host
from tools import helm

_ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = _ROOT / "manifests" / "chart"
RELEASE: Final = "gpuslice"
GPU_NODE_LABEL: Final = "nvidia.com/gpu.present=true"
"""The label of NVIDIA's GPU feature discovery."""
VALUES: Final = "values.json"
AGENT_PORT: Final = 10275
SCHEDULER_PORT: Final = 9445
_SIMULATED: Final = "/run/simgpu"
_HELM_S: Final = 180
_SMALL: Final = {"requests": {"cpu": "10m", "memory": "64Mi"}}


class ProductError(RuntimeError):
    """Helm refuses; the text is its output."""


@dataclass(frozen=True, slots=True)
class Program:
    """One of the product's: the words with which its command line continues after the first."""

    name: str
    words: tuple[str, ...]

    def matches(self, command: Sequence[str]) -> bool:
        return tuple(command[1 : len(self.words) + 1]) == self.words


EXTENDER: Final = Program("gpuslice extender", ("-m", "scheduler", "serve"))
KUBE_SCHEDULER: Final = Program(
    "gpuslice kube-scheduler", ("--config=/etc/kube-scheduler/kube-scheduler.yaml",)
)
AGENT: Final = Program("gpuslice node agent", ("-m", "nri_plugin"))
DISTRIBUTOR: Final = Program("gpuslice distributor", ("-m", "nri_plugin", "distribute"))
PROGRAMS: Final = (EXTENDER, KUBE_SCHEDULER, DISTRIBUTOR, AGENT)
"""The first that matches a process is its program."""


def values(
    server: str, mark: tuple[str, str], gpu_sockets: Path, served: Sequence[str]
) -> Mapping[str, Any]:
    """server: the API server's address: no kube-proxy makes its Service reachable. mark: a variable
    of every process of the cluster. gpu_sockets: the simulated GPUs, the device nodes of which the
    agent's pod would have otherwise."""
    at = urlsplit(server)
    environ = {
        "KUBERNETES_SERVICE_HOST": at.hostname,
        "KUBERNETES_SERVICE_PORT": str(at.port),
        mark[0]: mark[1],
    }
    extra = [{"name": name, "value": value} for name, value in environ.items()]
    simulated = {"name": "simgpu", "hostPath": {"path": str(gpu_sockets)}}
    return {
        "schedulerNames": [names.SCHEDULER_NAME, *served],
        "scheduler": {
            "replicas": 1,
            "resources": _SMALL,
            "kubeScheduler": {"resources": _SMALL},
            "extraEnv": extra,
        },
        "agent": {
            "http": {"address": "0.0.0.0"},
            "extraEnv": [*extra, {"name": "SIMGPU_DIR", "value": _SIMULATED}],
            "extraVolumes": [simulated],
            "extraVolumeMounts": [{"name": "simgpu", "mountPath": f"{_SIMULATED}/gpus"}],
        },
        "nri": {"restart": str(host.RESTART)},
        "distributor": {"extraEnv": extra},
    }


@dataclass(slots=True)
class Product:
    """environ: for Helm. files: a directory of the cluster's for values and Helm's own files."""

    plane: ControlPlane
    directory: Path
    _pids: dict[Program, int] = field(default_factory=dict)

    def write(self, chosen: Mapping[str, Any]) -> None:
        """The chart's values for this cluster, in a file."""
        (self.directory / VALUES).write_text(json.dumps(chosen, indent=1))

    def install(self, *options: str) -> None:
        """Install or upgrade. Raises ProductError."""
        values_file = f"--values={self.directory / VALUES}"
        command = ("upgrade", "--install", RELEASE, str(CHART), "--create-namespace")
        self.helm(*command, values_file, *options)

    def helm(self, *arguments: str) -> str:
        """Helm's output. Raises ProductError."""
        own = {f"HELM_{kind}_HOME": str(self.directory / "helm") for kind in ("CACHE", "CONFIG")}
        environ = {**os.environ, **self.plane.environ(), **own}
        environ["KUBECONFIG"] = str(self.plane.kubeconfig())
        command = [str(helm.ensure()), *arguments, f"--namespace={names.NAMESPACE}"]
        done = subprocess.run(command, env=environ, text=True, capture_output=True, timeout=_HELM_S)
        if done.returncode != 0:
            raise ProductError(f"helm {arguments[0]}: {done.stderr.strip()}")
        return done.stdout

    def pid(self, program: Program, mark: tuple[str, str]) -> int | None:
        """The number of its main process, outside of the lab's namespace; None while it does not
        run."""
        known = self._pids.get(program)
        if known is not None and program.matches(_command(known)):
            return known
        self._pids.pop(program, None)
        for pid in _marked(f"{mark[0]}={mark[1]}".encode()):
            if program_of(_command(pid)) is program:
                self._pids[program] = pid
                return pid
        return None


def program_of(command: Sequence[str]) -> Program | None:
    return next((program for program in PROGRAMS if program.matches(command)), None)


def _command(pid: int) -> Sequence[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ()


def _marked(mark: bytes) -> Sequence[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # it has exited
            continue
    return sorted(found)
