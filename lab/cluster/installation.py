"""gpuslice's scheduler beside a control plane of the lab: extender and kube-scheduler processes.

Tests may kill each process; `restart_exited` restarts it. Both use the chart's service account. The
extender keeps its ports across restarts.
"""

from __future__ import annotations

import copy
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lab import Running, pages
from lab.cluster.controlplane import ControlPlane, free_port
from lab.cluster.supervised import Process

Json = Mapping[str, Any]


class InstallationError(RuntimeError):
    """A program does not start. The text is the end of its log."""


class Installation(Running):
    """A context manager: extender and kube-scheduler run until its exit.

    configuration: kube-scheduler's configuration from the chart; the extender's address is added.
    module: the extender's Python module. arguments: more arguments of the extender. options: more
    options of kube-scheduler. hostname: the host name that both see; "" is this host's. Replicas
    need different host names, with which kube-scheduler's identity in the Lease begins.
    """

    def __init__(
        self,
        plane: ControlPlane,
        configuration: Json,
        name: str = "gpuslice",
        module: str = "scheduler",
        arguments: Sequence[str] = (),
        options: Sequence[str] = (),
        hostname: str = "",
    ) -> None:
        self.name = name
        self._hostname = hostname
        self._plane = plane
        self._port, self._http_port, secure_port = free_port(), free_port(), free_port()
        self._arguments = (f"--kube-scheduler=127.0.0.1:{secure_port}", *arguments)
        skip = "--authentication-skip-lookup=true"
        self._options = (f"--secure-port={secure_port}", skip, *options)
        self._module = module
        self._kubeconfig = plane.kubeconfig("scheduler")
        self.config = plane.directory / f"{name}.kube-scheduler.yaml"
        written = copy.deepcopy(dict(configuration))
        written["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{self._port}"
        self.config.write_text(json.dumps(written))
        self._starting = threading.Lock()
        self._started: dict[str, Process] = {}

    def start(self) -> None:
        """Start the extender, then kube-scheduler. Raises InstallationError."""
        self.start_extender()
        self.wait_ready()
        self.start_kube_scheduler()

    def stop(self) -> None:
        """End both programs. Idempotent."""
        for process in reversed(self._started.values()):
            process.kill()

    @property
    def extender(self) -> Process:
        return self._started["extender"]

    @property
    def kube_scheduler(self) -> Process:
        return self._started["kube-scheduler"]

    def restart_exited(self) -> None:
        """Restart exited programs, as the kubelet would. Call this about every second, because
        kube-scheduler exits if it cannot renew its Lease in time."""
        self.start_extender()
        self.start_kube_scheduler()

    def start_extender(self) -> None:
        with self._starting:
            if "extender" in self._started and self.extender.running:
                return
            command = [
                *(sys.executable, "-m", self._module, "serve", f"--kubeconfig={self._kubeconfig}"),
                *(f"--listen=127.0.0.1:{self._port}", f"--http=127.0.0.1:{self._http_port}"),
                *self._arguments,
            ]
            log = self._plane.directory / f"{self.name}.extender.log"
            environ = self._plane.environ()
            self._started["extender"] = Process(command, log, environ, hostname=self._hostname)

    def start_kube_scheduler(self) -> None:
        with self._starting:
            if "kube-scheduler" not in self._started or not self.kube_scheduler.running:
                program = (self.config, self._kubeconfig, f"{self.name}.kube-scheduler")
                self._started["kube-scheduler"] = self._plane.start_kube_scheduler(
                    *program, *self._options, hostname=self._hostname
                )

    def wait_ready(self) -> None:
        """Wait until the extender is ready. Raises InstallationError."""
        self._wait(lambda: self.ask("/readyz")[0] == 200, "the extender is not ready")

    def wait_binds(self) -> None:
        """Wait until the extender may bind. Raises InstallationError."""
        self._wait(lambda: self.binds, "the extender may not bind")

    def _wait(self, is_over: Callable[[], bool], problem: str) -> None:
        deadline = time.monotonic() + 120.0
        while not is_over():
            if not self.extender.running or time.monotonic() > deadline:
                raise InstallationError(f"{problem}:\n{self.extender.log_tail()}")
            time.sleep(0.05)

    @property
    def binds(self) -> bool:
        """Whether the extender may bind pods, because its kube-scheduler holds the Lease."""
        return "this process binds" in self.ask("/readyz")[1]

    @property
    def pages(self) -> tuple[str, int]:
        """The host and port of the extender's probes and metrics."""
        return ("127.0.0.1", self._http_port)

    def ask(self, path: str) -> tuple[int, str]:
        """Return status and body of a page of the extender's probes; status 0 without an answer."""
        try:
            return pages.get(self.pages, path, timeout_s=5)
        except OSError as error:
            return 0, str(error)
