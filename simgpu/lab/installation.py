"""gpuslice's scheduler as an operator has it, beside a control plane of the lab: the extender, and
the kube-scheduler that asks it, each a process that can be killed, and is started again by `tend`.

Both speak to the API server as the manifests' service account. The extender's ports stay the same
from start to start.
"""

from __future__ import annotations

import copy
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final

from simgpu.lab.controlplane import ControlPlane, free_port
from simgpu.lab.kept import Process

Json = Mapping[str, Any]

_READY_S: Final = 120.0


class InstallationError(RuntimeError):
    """A program does not come up; the text is the end of its log."""


class Installation:
    """configuration: kube-scheduler's, as `scheduler.profiles` makes it; where the extender is, is
    put in here. module: the extender's program. installation: what replicas of one have in common,
    "": there is none beside this. As a context: both run from entering to leaving."""

    def __init__(
        self,
        plane: ControlPlane,
        configuration: Json,
        name: str = "gpuslice",
        module: str = "scheduler",
        installation: str = "",
    ) -> None:
        self.name = name
        self._installation = installation or name
        self._plane = plane
        self._port, self._http_port = free_port(), free_port()
        self._module = module
        self._kubeconfig = plane.kubeconfig("scheduler")
        self._state_dir = plane.directory / f"{name}.state"
        self.config = plane.directory / f"{name}.kube-scheduler.yaml"
        written = copy.deepcopy(dict(configuration))
        written["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{self._port}"
        self.config.write_text(json.dumps(written))
        self._starting = threading.Lock()
        self._extender: Process | None = None
        self._kube_scheduler: Process | None = None

    def __enter__(self) -> Installation:
        try:
            self.tend_extender()
            self.wait_ready()
            self.tend_kube_scheduler()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Both end. Idempotent."""
        for process in (self._kube_scheduler, self._extender):
            if process is not None:
                process.kill()

    @property
    def extender(self) -> Process:
        assert self._extender is not None
        return self._extender

    @property
    def kube_scheduler(self) -> Process:
        assert self._kube_scheduler is not None
        return self._kube_scheduler

    def tend(self) -> None:
        """To be called every second or so: what has ended is started again, as the kubelet would.
        kube-scheduler ends by itself where it could not renew its Lease in time."""
        self.tend_extender()
        self.tend_kube_scheduler()

    def tend_extender(self) -> None:
        with self._starting:
            if self._extender is not None and self._extender.running:
                return
            command = [
                *(sys.executable, "-m", self._module, "serve", f"--kubeconfig={self._kubeconfig}"),
                *(f"--listen=127.0.0.1:{self._port}", f"--http=127.0.0.1:{self._http_port}"),
                *(f"--installation={self._installation}", f"--state-dir={self._state_dir}"),
            ]
            log = self._plane.directory / f"{self.name}.extender.log"
            self._extender = Process(command, log, self._plane.environ())

    def tend_kube_scheduler(self) -> None:
        with self._starting:
            if self._kube_scheduler is None or not self._kube_scheduler.running:
                self._kube_scheduler = self._plane.start_kube_scheduler(
                    self.config, self._kubeconfig, f"{self.name}.kube-scheduler"
                )

    def wait_ready(self) -> None:
        """Until the extender says so. Raises InstallationError."""
        deadline = time.monotonic() + _READY_S
        while not self._is_ready():
            if not self.extender.running or time.monotonic() > deadline:
                raise InstallationError(f"the extender is not ready:\n{self.extender.log_tail()}")
            time.sleep(0.05)

    @property
    def port(self) -> int:
        """Where kube-scheduler asks the extender."""
        return self._port

    @property
    def pages(self) -> tuple[str, int]:
        """Where the extender says how it is."""
        return ("127.0.0.1", self._http_port)

    def ask(self, path: str) -> tuple[int, str]:
        """What the extender's other port answers; 0 where it does not."""
        url = f"http://127.0.0.1:{self._http_port}{path}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def _is_ready(self) -> bool:
        return self.ask("/readyz")[0] == 200
