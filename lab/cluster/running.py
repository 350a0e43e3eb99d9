"""A running cluster of one node: its parts, in the order of their start, kept alive.

It owns a Lab (GPUs, containerd) and a ControlPlane, and installs gpuslice as its users do
(product.py). Its owner calls `restart_exited_parts` repeatedly.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from gpuslice.contract import names
from lab import Running, tail
from lab.cluster import product, registry
from lab.cluster.controlplane import ControlPlane, ControlPlaneError, Serving
from lab.cluster.kubelet import Kubelet
from lab.cluster.openssl import OpensslError, make_certificate
from lab.cluster.product import Product, ProductError, Wanted
from lab.cluster.supervised import Process
from lab.node import catalogue
from lab.node.catalogue import Catalogue
from lab.node.containerd import ContainerdError
from lab.node.lab import CLUSTER_FILES, Lab, LabError
from lab.node.namespace import Inside, NamespaceError, children
from lab.node.network import NetworkError
from simgpu.config import ConfigError
from tools import kubernetes
from tools.images import product as product_images
from tools.images.oci import ImageError
from tools.images.table import table
from tools.progress import step

NODE: Final = "gpuslice"
"""The node's name, and its host name."""
_AGAIN_S: Final = 10.0
"""Interval between two attempts to start a part."""
_CHECKS_POLICIES: Final = "validatingadmissionpolicy-status-controller"
"""A controller that type-checks the expressions of policies and writes the result to their status.
It is off: it takes four seconds of a core at each start, and tests use the API server's own check.
"""
_GPUS: Final = f"{{.status.allocatable.{names.RESOURCE_GPU.replace('.', chr(92) + '.')}}}"
_WHOLE: Final = (
    ("condition=Ready", f"node/{NODE}"),
    ("create", "serviceaccount/default"),
    ("create", "configmap/kube-root-ca.crt"),
)
"""Conditions: the node is ready for pods, and `default` has the objects that each pod needs."""
_KUBELET_CLIENT: Final = ("/O=system:masters/CN=kube-apiserver", "extendedKeyUsage=clientAuth")
"""The subject and use of the API server's client certificate. kubelet takes the subject as the
user, and has the API server authorise each request."""
_USERS: Final = {
    "controller-manager": ("system:kube-controller-manager", ()),
    "kubelet": (f"system:node:{NODE}", ("system:nodes",)),
}


class ClusterError(RuntimeError):
    """The cluster does not start or cannot be repaired. The text names the part and the reason."""


FAILURES: Final = (
    *(ConfigError, ContainerdError, ControlPlaneError, ImageError, LabError, NamespaceError),
    OpensslError,
    *(ClusterError, NetworkError, OSError, ProductError, subprocess.SubprocessError),
)


@dataclass(slots=True)
class Part:
    """One program. pid: returns its process ID, or None if it does not run. start: starts the
    program; None: kubelet does."""

    name: str
    pid: Callable[[], int | None]
    start: Callable[[], object] | None = None
    restarts: int = 0
    last_pid: int | None = None
    tried_s: float = float("-inf")


class Cluster(Running):
    """A context manager: all parts run until its exit, which leaves nothing on the machine.

    parent: the cluster's directory, in which the lab's directory is made. Every process of the
    cluster has this path in its environment. The path must be short (see namespace.py).
    """

    def __init__(self, wanted: Wanted, parent: Path) -> None:
        self._wanted = wanted
        self._parent = parent
        self._stack = ExitStack()
        self._page, self._page_of = ("", 0), 0
        self.parts: list[Part] = []

    def stop(self) -> None:
        self._stack.close()

    def start(self) -> None:
        """Start everything. The images are loaded in parallel with the control plane's start."""
        programs = kubernetes.ensure()
        with step("simulated GPUs, containerd"):
            self.lab = Lab(self._wanted.gpus, load=False, on_host=True, parent=self._parent)
            self._stack.enter_context(self.lab)
        with ThreadPoolExecutor(1) as beside:
            images = beside.submit(self._load_images, programs.kube_scheduler)
            client_ca = self._open_plane()
            with step("kube-controller-manager, kube-scheduler, kubelet"):
                self._start_manager()
                self._start_scheduler()
                paths = self.lab.containerd.paths
                self.kubelet = Kubelet(self.lab.namespace, paths, programs, client_ca)
                self._start_kubelet()
                self._wait(("create", f"node/{NODE}"))
            images.result()
        self.product = Product(self.plane, self._parent, self.lab.directory)
        served, dialects = self._wanted.served or (), self._wanted.dialects
        sockets = self.lab.sim_dir / "gpus"
        chosen = product.values(self.plane.server, self._parent, sockets, served, dialects)
        (self.lab.directory / product.VALUES).write_text(json.dumps(chosen, indent=1))
        if self._wanted.served is not None:
            with step("gpuslice: helm install, until its pods are ready"):
                self.plane.kubectl("label", "node", NODE, product.GPU_NODE_LABEL)
                self.product.install("--wait", "--timeout=90s")
                self._wait((f"jsonpath={_GPUS}", f"node/{NODE}"))
        self._wait(*_WHOLE)
        if self._wanted.served is not None:
            self.product.find_processes()
        self.parts = self._table()

    def _load_images(self, kube_scheduler: Path) -> None:
        """Load the images of the node, and gpuslice's own. Build those that the cache lacks."""
        built = [product_images.ensure(recipe) for recipe in table().recipes.values()]
        with step("images"):
            theirs = catalogue.kube_scheduler(kube_scheduler, kubernetes.VERSION)
            archive = self.lab.load([*Catalogue(CLUSTER_FILES).of_a_cluster(), theirs])
            for each in built:
                self.lab.containerd.import_image(each.path)
        assert self.lab.namespace.link is not None
        archives = [archive, *(each.path for each in built)]
        served = registry.serving(archives, self.lab.namespace.link.machine)
        self.lab.namespace.write(registry.HOSTS_FILE, self._stack.enter_context(served))

    def _open_plane(self) -> Path:
        """Start the control plane. Return the certificate that it shows to kubelet."""
        link = self.lab.namespace.link
        assert link is not None
        directory = self.lab.directory
        shown, key = directory / "kube-apiserver.crt", directory / "kube-apiserver.key"
        make_certificate(shown, key, *_KUBELET_CLIENT)
        serving = Serving(
            address=link.machine,
            users=_USERS,
            admission_off=(),
            options=(
                "--enable-admission-plugins=NodeRestriction",
                "--kubelet-preferred-address-types=InternalIP",
                *(f"--kubelet-client-certificate={shown}", f"--kubelet-client-key={key}"),
            ),
        )
        with step("etcd, kube-apiserver"):
            self.plane = ControlPlane(directory / "plane", serving=serving)
            self._stack.enter_context(self.plane)
        return shown

    def _table(self) -> list[Part]:
        """Return the parts in the order of restarts: no part depends on a later one."""
        lab, plane = self.lab, self.plane
        return [
            Part("simulated GPUs", lambda: lab.gpus_pid, lab.start_gpus),
            Part("containerd", lambda: _inside(lab.containerd.process), lab.containerd.start),
            Part("etcd", lambda: _kept(plane.etcd), plane.restart_etcd),
            Part("kube-apiserver", lambda: _kept(plane.apiserver), plane.restart_apiserver),
            Part("kube-controller-manager", lambda: _kept(self._manager), self._start_manager),
            Part("kube-scheduler", lambda: _kept(self._scheduler), self._start_scheduler),
            Part("kubelet", lambda: _inside(self.kubelet.process), self._start_kubelet),
            *(
                Part(program, partial(self.product.pid, program))
                for program in product.PROGRAMS
                if self._wanted.served is not None
            ),
        ]

    def _start_manager(self) -> None:
        plane = self.plane
        command: list[str | Path] = [
            plane.programs.kube_controller_manager,
            f"--kubeconfig={plane.kubeconfig('controller-manager')}",
            *("--leader-elect=false", "--secure-port=0", "--use-service-account-credentials"),
            f"--controllers=*,-{_CHECKS_POLICIES}",
            f"--service-account-private-key-file={plane.service_account_key}",
            f"--root-ca-file={plane.ca}",
        ]
        log = plane.directory / "kube-controller-manager.log"
        self._manager = Process(command, log, plane.environ())
        self._stack.callback(self._manager.kill)

    def _start_scheduler(self) -> None:
        self._scheduler = self.plane.start_kube_scheduler()

    def _start_kubelet(self) -> None:
        self.kubelet.start(NODE, self.plane.kubeconfig("kubelet"))

    def _wait(self, *conditions: tuple[str, str]) -> None:
        """Wait for conditions: each an argument of `kubectl wait --for` and an object's name."""
        for condition, name in conditions:
            done = self.plane.try_kubectl("wait", f"--for={condition}", "--timeout=90s", name)
            if done.returncode != 0:
                pods = self.plane.try_kubectl("get", "pods", "--all-namespaces").stdout
                raise ClusterError(
                    f"{done.stderr.strip()}\n{pods}\nkubelet's log ends:\n{tail(self.kubelet.log)}"
                )

    def pages(self) -> Mapping[str, tuple[str, int]]:
        """Return where this machine reaches the programs' probes and metrics."""
        link = self.lab.namespace.link
        assert link is not None
        extender = self.product.pid(product.EXTENDER)
        if extender is not None and extender != self._page_of:
            path = "jsonpath={.items[0].status.podIP}"
            labels = f"--selector=app.kubernetes.io/name={names.SCHEDULER_NAME}"
            found = self.plane.try_kubectl(
                "get", "pods", f"-n={names.NAMESPACE}", labels, "-o", path
            )
            if found.stdout:
                self._page = found.stdout, product.SCHEDULER_PORT
                self._page_of = extender
        return {product.EXTENDER: self._page, product.AGENT: (link.node, product.AGENT_PORT)}

    def restart_exited_parts(self) -> list[str]:
        """Start exited parts. Return the names of parts that run again, to be reported.

        Raises ClusterError if the namespaces are gone.
        """
        if not self.lab.namespace.alive:
            raise ClusterError("the lab's namespaces are gone, and all that was in them")
        if self._wanted.served is not None:
            self.product.find_processes()
        restarted = []
        for part in self.parts:
            pid, now_s = part.pid(), time.monotonic()
            if pid is not None:
                if part.last_pid not in (None, pid):
                    part.restarts += 1
                    restarted.append(part.name)
                part.last_pid = pid
            elif part.start is not None and now_s - part.tried_s >= _AGAIN_S:
                part.tried_s = now_s
                try:
                    part.start()
                except FAILURES as error:
                    sys.stderr.write(f"{part.name} does not come up: {error}\n")
        return restarted


def _kept(process: Process) -> int | None:
    return process.pid if process.running else None


def _inside(process: Inside | None) -> int | None:
    """Return the process ID outside of the lab's PID namespace."""
    if process is None or not process.running:
        return None
    return next(iter(children(process.entering.pid)), None)
