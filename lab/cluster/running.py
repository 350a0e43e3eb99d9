"""A running cluster of one node: its parts, in the order of their start, kept alive.

Responsible for starting each part and restarting those that have exited. It owns a Lab (GPUs,
containerd, agent) and a ControlPlane, in whose directory all of it is, and installs what users
install (installed.py). Its owner calls `mend` repeatedly. If the lab's namespaces themselves are
gone, it raises, and the owner exits.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from contract import names
from lab.cluster import certificate, installed
from lab.cluster.certificate import CertificateError
from lab.cluster.controlplane import ControlPlane, ControlPlaneError, Serving
from lab.cluster.installation import Installation, InstallationError
from lab.cluster.kept import Process
from lab.cluster.kubelet import Kubelet, KubeletError
from lab.node.catalogue import Catalogue
from lab.node.containerd import ContainerdError
from lab.node.lab import CLUSTER_FILES, Lab, LabError
from lab.node.namespace import Inside, NamespaceError, children
from lab.node.network import NetworkError
from simgpu.config import ConfigError
from tools import kubernetes
from tools.images.oci import ImageError
from tools.progress import step

NODE: Final = "gpuslice"
"""The node's name, and its host name."""
_TOKEN_S: Final = 8 * 3600.0
_AGAIN_S: Final = 10.0
"""Interval between two attempts to start a part."""
_AGENT_ACCOUNT: Final = "gpuslice-agent"
"""The manifests' service account."""
_CHECKS_POLICIES: Final = "validatingadmissionpolicy-status-controller"
"""It writes into a policy's status whether its expressions type-check, and takes four seconds of a
core for ours at each start; tests use the API server itself."""
_GPUS: Final = f"{{.status.allocatable.{names.RESOURCE_GPU.replace('.', chr(92) + '.')}}}"
_WHOLE: Final = (
    ("condition=Ready", f"node/{NODE}"),
    ("create", "serviceaccount/default"),
    ("create", "configmap/kube-root-ca.crt"),
    (f"jsonpath={_GPUS}", f"node/{NODE}"),
)
"""The node has its GPUs, which pods request, and the namespace `default` has what every pod needs.
"""
_USERS: Final = {
    "controller-manager": ("system:kube-controller-manager", ()),
    "kubelet": (f"system:node:{NODE}", ("system:nodes",)),
}


class ClusterError(RuntimeError):
    """The cluster does not start, or cannot be repaired; the text names the part and the reason."""


_FAILURES: Final = (
    *(
        CertificateError,
        ConfigError,
        ContainerdError,
        ControlPlaneError,
        ImageError,
        InstallationError,
        KubeletError,
        LabError,
    ),
    *(NamespaceError, NetworkError, OSError, subprocess.SubprocessError),
)


@dataclass(slots=True)
class Part:
    """One program: how it is started and restarted, and its process number while it runs."""

    name: str
    start: Callable[[], object]
    pid: Callable[[], int | None]
    restarts: int = 0
    tried_s: float = float("-inf")


class Cluster:
    """Everything runs until the block ends; then nothing of it is left on the machine.

    parent: where its directory is made (a short name: see namespace.py). served: names of other
    schedulers whose pods ours accepts too.
    """

    def __init__(
        self, memory_bytes: Sequence[int], parent: Path, served: Sequence[str] = ()
    ) -> None:
        self._memory = memory_bytes
        self._served = served
        self._parent = parent
        self._stack = ExitStack()
        self.parts: list[Part] = []

    def __enter__(self) -> Cluster:
        try:
            self._open()
        except _FAILURES as error:
            self._stack.close()
            raise ClusterError(str(error)) from error
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _open(self) -> None:
        """Parts that wait for no other start in parallel: images, above all."""
        programs = kubernetes.ensure()
        with step("simulated GPUs, containerd"):
            self.lab = Lab(self._memory, load=False, own_network=True, parent=self._parent)
            self._stack.enter_context(self.lab)
        with ThreadPoolExecutor(1) as beside:
            images = beside.submit(self._load_images)
            client_ca = self._open_plane()
            self._manager_program = programs.kube_controller_manager
            self._manager = self._scheduler = None
            with step("kube-controller-manager, kube-scheduler, kubelet; manifests/ applied"):
                self._start_manager()
                self._start_scheduler()
                paths = self.lab.containerd.paths
                self.kubelet = Kubelet(self.lab.namespace, paths, programs, client_ca)
                self._start_kubelet()
                installed.install(self.plane, self._served)
            with step("gpuslice's extender, kube-scheduler and node agent"):
                self.ours = Installation(self.plane, installed.configuration(self.plane))
                self._stack.callback(self.ours.stop)
                self.ours.tend_extender()
                self._wait(("create", f"node/{NODE}"))
                self._start_agent()
                self._stack.enter_context(self.ours)
                self._wait(*_WHOLE)
            images.result()
        self.parts = self._table()

    def _load_images(self) -> None:
        with step("images"):
            self.lab.load(Catalogue(CLUSTER_FILES).of_a_cluster())

    def _open_plane(self) -> Path:
        """The API server's client certificate for kubelet."""
        link = self.lab.namespace.link
        assert link is not None
        directory = self.lab.directory
        shown, key = directory / "kube-apiserver.crt", directory / "kube-apiserver.key"
        certificate.make(shown, key, certificate.KUBELET_CLIENT)
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

    _manager: Process | None
    _scheduler: Process | None

    def _table(self) -> list[Part]:
        """Parts that others depend on come first: of several that have exited, each is awaited in
        turn."""
        lab, plane, ours = self.lab, self.plane, self.ours
        return [
            Part("simulated GPUs", lab.start_gpus, lambda: lab.gpus_pid),
            Part("containerd", lab.containerd.start, lambda: _inside(lab.containerd.process)),
            Part("etcd", plane.restart_etcd, lambda: _kept(plane.etcd)),
            Part("kube-apiserver", plane.restart_apiserver, lambda: _kept(plane.apiserver)),
            Part("kube-controller-manager", self._start_manager, lambda: _kept(self._manager)),
            Part("kube-scheduler", self._start_scheduler, lambda: _kept(self._scheduler)),
            Part("gpuslice extender", ours.tend_extender, lambda: _kept(ours.extender)),
            Part(
                "gpuslice kube-scheduler",
                ours.tend_kube_scheduler,
                lambda: _kept(ours.kube_scheduler),
            ),
            Part("kubelet", self._start_kubelet, lambda: _inside(self.kubelet.process)),
            Part("gpuslice node agent", self._start_agent, lambda: _inside(lab.agent)),
        ]

    def _start_manager(self) -> None:
        plane = self.plane
        command: list[str | Path] = [
            *(self._manager_program, f"--kubeconfig={plane.kubeconfig('controller-manager')}"),
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

    def _start_agent(self) -> None:
        """As its pod would run: with the account's token for this node, valid for a day."""
        self.lab.start_agent(options=("--kubeconfig", self._renew_token(), "--node-name", NODE))

    def _renew_token(self) -> Path:
        self._token_s = time.monotonic()
        return self.plane.service_account_kubeconfig(names.NAMESPACE, _AGENT_ACCOUNT, NODE)

    def _wait(self, *conditions: tuple[str, str]) -> None:
        """Each: an argument of `kubectl wait --for`, and an object's name. Raises ClusterError."""
        for condition, name in conditions:
            done = self.plane.try_kubectl("wait", f"--for={condition}", "--timeout=90s", name)
            if done.returncode != 0:
                agent = self.lab.agent_log
                said = agent.read_text(errors="replace")[-4000:] if agent.exists() else ""
                raise ClusterError(
                    f"{done.stderr.strip()}; kubelet's log ends:\n{self.kubelet.log_tail()}\n"
                    f"the node agent's:\n{said}"
                )

    # --- keeping it alive -------------------------------------------------------------------

    def mend(self) -> list[str]:
        """Restart exited parts; return their names, to be reported.

        Raises ClusterError if the namespaces are gone.
        """
        if not self.lab.namespace.alive:
            raise ClusterError("the lab's namespaces are gone, and all that was in them")
        if time.monotonic() - self._token_s > _TOKEN_S:
            with contextlib.suppress(*_FAILURES):
                self._renew_token()
        mended = []
        for part in self.parts:
            now = time.monotonic()
            if part.pid() is not None or now - part.tried_s < _AGAIN_S:
                continue
            part.tried_s = now
            part.restarts += 1
            mended.append(part.name)
            try:
                part.start()
            except _FAILURES as error:
                sys.stderr.write(f"{part.name} does not come up: {error}\n")
        return mended


def _kept(process: Process | None) -> int | None:
    return process.pid if process is not None and process.running else None


def _inside(process: Inside | None) -> int | None:
    """The number outside of the lab's namespace."""
    if process is None or not process.running:
        return None
    return next(iter(children(process.entering.pid)), None)
