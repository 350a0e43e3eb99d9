"""The lab's kubelet: a node of a cluster on top of the lab's containerd, in the lab's namespaces.

Its files, logs, mounts, cgroups and addresses are the lab's. Paths and kernel settings that kubelet
has no option for are covered in the lab's mount namespace, so that this machine's are unchanged.
Responsible for starting and stopping the program; independent of pods.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from lab.node import cgroups, network
from lab.node.containerd import Paths
from lab.node.namespace import Inside, Namespace
from lab.node.network import Link
from tools.kubernetes import Kubernetes

PORT: Final = 10250
"""Kubelet's default; the address is the node's, in a network namespace of its own."""
_KERNEL: Final[Mapping[str, int]] = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
"""Settings that kubelet would write for the whole machine; in the lab it reads them as set."""


def configuration(
    directory: Path, link: Link, containerd: Path, client_ca: Path, cgroup: str
) -> dict[str, Any]:
    """The whole file. Eviction and image removal for lack of disk are off: images that a user adds
    are imported, and could not be pulled again."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": link.node,
        "port": PORT,
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(client_ca)},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{containerd}",
        "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},  # tests kill programs on purpose
        "clusterDNS": ["127.0.0.1"],  # no name server: lookups fail at once
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "evictionHard": {},
        "imageGCHighThresholdPercent": 100,
        "makeIPTablesUtilChains": False,
        "podLogsDir": str(directory / "pods"),
        "protectKernelDefaults": True,
        "resolvConf": "",
        "volumePluginDir": str(directory / "volume-plugins"),
    }


class Kubelet:
    """The program; `start` and `stop` may alternate, pods keep running between them."""

    def __init__(
        self, namespace: Namespace, containerd: Paths, programs: Kubernetes, client_ca: Path
    ) -> None:
        assert namespace.link is not None
        self.directory = namespace.directory / "kubelet"
        self.log = namespace.directory / "kubelet.log"
        self._namespace = namespace
        self._programs = programs
        self.process: Inside | None = None
        self.directory.mkdir()
        self._cni(containerd.cni, namespace.link)
        settings = self.directory / "kernel"
        for name, value in _KERNEL.items():
            own = settings / name
            own.parent.mkdir(parents=True, exist_ok=True)
            own.write_text(f"{value}\n")
            namespace.mount("--bind", own, Path("/proc/sys") / name)
        # One hierarchy under cgroup v2; under v1 one for each controller or several.
        tops = [cgroups.ROOT]
        if not (cgroups.ROOT / "cgroup.controllers").exists():
            tops = [each for each in cgroups.ROOT.iterdir() if (each / "cgroup.procs").exists()]
        for top in tops:
            (top / namespace.cgroup).mkdir(exist_ok=True)
        written = configuration(
            self.directory, namespace.link, containerd.socket, client_ca, namespace.cgroup
        )
        (self.directory / "config.yaml").write_text(yaml.safe_dump(written))

    def start(self, name: str, kubeconfig: Path) -> None:
        """It registers a node called `name` once it is healthy."""
        assert self._namespace.link is not None
        command: list[str | Path] = [
            *(self._programs.kubelet, f"--config={self.directory / 'config.yaml'}"),
            *(f"--kubeconfig={kubeconfig}", f"--hostname-override={name}"),
            f"--node-ip={self._namespace.link.node}",
        ]
        environ = {"HOME": str(self.directory), "NO_PROXY": self._namespace.link.machine}
        with self.log.open("a") as log:
            self.process = self._namespace.start(command, log, subprocess.STDOUT, environ)

    def _cni(self, places: tuple[Path, Path], link: Link) -> None:
        """Written where the lab's containerd polls for a network configuration."""
        programs = self._namespace.outside(places[0])
        programs.mkdir(parents=True)
        for name, program in self._programs.cni.items():
            shutil.copy2(program, programs / name)
        # containerd reacts to a write into the directory, not to a rename.
        written = json.dumps(network.pod_network(link, self.directory / "addresses"))
        self._namespace.write(places[1] / "10-pods.conflist", written)
