"""The lab's kubelet, which makes the lab's containerd and namespaces a node of a cluster.

Its files, logs, mounts, cgroups and addresses belong to the lab. kubelet has no option for some
paths and kernel settings. Mounts in the lab's mount namespace cover them, so this machine's own
stay unchanged. This module starts and stops the program. It does not handle pods.
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
"""Kubelet's default port, which is free because the node has a network namespace."""
_KERNEL: Final[Mapping[str, int]] = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
"""Kernel settings that kubelet requires. Files with these values cover this machine's files."""


def configuration(
    directory: Path, link: Link, containerd: Path, client_ca: Path, cgroup: str
) -> dict[str, Any]:
    """Return kubelet's configuration. No pod is evicted and no image removed for lack of disk,
    because an image that a user has imported could not be pulled again."""
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
        "clusterDNS": ["127.0.0.1"],  # there is no name server, so lookups fail at once
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
    """The kubelet. `start` and `stop` may alternate; pods keep running in between."""

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
        # cgroup v2 has one hierarchy. cgroup v1 has several, each with one or more controllers.
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
        """Start kubelet, which registers a node called `name` once it is healthy."""
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
        """Install the pods' network plugins and their configuration where containerd looks for
        them."""
        programs = self._namespace.outside(places[0])
        programs.mkdir(parents=True)
        for name, program in self._programs.cni.items():
            shutil.copy2(program, programs / name)
        # containerd notices a file that is written in the directory, but not a renamed one.
        written = json.dumps(network.pod_network(link, self.directory / "addresses"))
        self._namespace.write(places[1] / "10-pods.conflist", written)
