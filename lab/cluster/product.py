"""gpuslice on the lab's cluster, installed as its users install it: images, chart, Helm.

The chart's values differ from the defaults because the lab's machine is small, and has no
kube-proxy and no real GPU. The programs run as processes in pods, which the kubelet restarts. This
module finds their process IDs by the cluster's variable in their environment.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from gpuslice.contract import names
from gpuslice.contract.dialects import DIALECTS
from lab.cluster.controlplane import ControlPlane
from lab.cluster.directory import MARK, processes
from lab.node import network
from tools import chart, kubernetes

RELEASE: Final = "gpuslice"
GPU_NODE_LABEL: Final = "nvidia.com/gpu.present=true"
"""The node label that NVIDIA's GPU feature discovery sets."""
VALUES: Final = "values.json"
AGENT_PORT: Final = 10275
SCHEDULER_PORT: Final = 9445
_SIMULATED: Final = "/run/simgpu"
_SMALL: Final = {"requests": {"cpu": "10m", "memory": "64Mi"}}


@dataclass(frozen=True)
class Wanted:
    """The requested cluster. gpus: the bytes of each GPU. served: further schedulerNames whose pods
    gpuslice schedules; None: gpuslice is not installed. dialects: names of dialects that are on in
    addition to Koordinator's (gpuslice.contract.dialects)."""

    gpus: Sequence[int]
    served: Sequence[str] | None = ()
    dialects: Sequence[str] = ()


class ProductError(RuntimeError):
    """Helm fails. The text is its output."""


def run_helm(
    kubeconfig: Path, directory: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run Helm in gpuslice's namespace. directory: the lab's, which gets Helm's own files."""
    environ = network.unproxied(os.environ)
    environ |= {"KUBECONFIG": str(kubeconfig), "HOME": str(directory / "helm")}
    command = [str(kubernetes.ensure_helm()), *arguments, f"--namespace={names.NAMESPACE}"]
    return subprocess.run(command, env=environ, text=True, capture_output=True, timeout=280)


EXTENDER: Final = "gpuslice extender"
AGENT: Final = "gpuslice node agent"
PROGRAMS: Final[Mapping[str, tuple[str, ...]]] = {
    EXTENDER: ("-m", "scheduler", "serve"),
    "gpuslice kube-scheduler": ("--config=/etc/kube-scheduler/kube-scheduler.yaml",),
    "gpuslice distributor": ("-m", "nri_plugin", "distribute"),
    AGENT: ("-m", "nri_plugin"),
}
"""Each program's first arguments. A process runs the first program whose arguments match."""


def values(
    server: str,
    cluster: Path,
    gpu_sockets: Path,
    served: Sequence[str],
    dialects: Sequence[str] = (),
) -> Mapping[str, Any]:
    """Return the chart's values. server: the API server's URL, which pods use because no kube-proxy
    makes its Service reachable. cluster: the cluster's directory, which marks its processes.
    gpu_sockets: the simulated GPUs' sockets, which the agent's pod mounts."""
    at = urlsplit(server)
    environ = {
        "KUBERNETES_SERVICE_HOST": at.hostname,
        "KUBERNETES_SERVICE_PORT": str(at.port),
        MARK: str(cluster),
    }
    extra = [{"name": name, "value": value} for name, value in environ.items()]
    simulated = {"name": "simgpu", "hostPath": {"path": str(gpu_sockets)}}
    return {
        "schedulerNames": [names.SCHEDULER_NAME, *served],
        **_switches(dialects),
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
        "distributor": {"extraEnv": extra},
    }


def _switches(dialects: Sequence[str]) -> Mapping[str, Any]:
    """Return the chart's values that turn these dialects on."""
    chosen: dict[str, Any] = {}
    for dialect in DIALECTS:
        if dialect.name in dialects:
            *parents, last = dialect.switch.split(".")
            inner = chosen
            for parent in parents:
                inner = inner.setdefault(parent, {})
            inner[last] = True
    return chosen


@dataclass(slots=True)
class Product:
    """gpuslice on a cluster. cluster: the cluster's directory. directory: as in run_helm."""

    plane: ControlPlane
    cluster: Path
    directory: Path
    _pids: dict[str, int] = field(default_factory=dict)

    def install(self, *options: str) -> None:
        """Install or upgrade. Raises ProductError."""
        values_file = f"--values={self.directory / VALUES}"
        command = ("upgrade", "--install", RELEASE, str(chart.CHART), "--create-namespace")
        kubeconfig = self.plane.kubeconfig()
        done = run_helm(kubeconfig, self.directory, *command, values_file, *options)
        if done.returncode != 0:
            raise ProductError(f"helm upgrade: {done.stderr.strip()}")

    def find_processes(self) -> None:
        """Find the programs' main processes, with their IDs outside of the lab's PID namespace."""
        found = {each: pid for each, pid in self._pids.items() if _program_of(pid) == each}
        if len(found) < len(PROGRAMS):
            for pid in sorted(processes(self.cluster)):
                if program := _program_of(pid):
                    found.setdefault(program, pid)
        self._pids = found

    def pid(self, program: str) -> int | None:
        """The program's process ID as of the last `find_processes`, or None if it did not run."""
        return self._pids.get(program)


def _program_of(pid: int) -> str | None:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:  # the process has exited
        return None
    matching = (name for name, words in PROGRAMS.items() if command[1:][: len(words)] == [*words])
    return next(matching, None)
