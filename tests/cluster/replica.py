"""A replica of the scheduler: a stock kube-scheduler of the generated configuration, and
`python -m scheduler serve` beside it, with the manifests' account.
"""

from __future__ import annotations

import copy
import json
import socket
import sys
import urllib.error
import urllib.request
from typing import Self

from scheduler.profiles import Profiles, configuration
from simgpu.lab.controlplane import ControlPlane
from simgpu.lab.kept import Process
from tests.cluster.waiting import until

LEASE_S = 4
"""kube-scheduler's own."""


def free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return int(chosen.getsockname()[1])


class Replica:
    """From entering to leaving. Replicas of one installation elect one leader among them."""

    def __init__(self, plane: ControlPlane, name: str, installation: str = "here") -> None:
        self.name = name
        self._plane = plane
        self._port, self._http = free_port(), free_port()
        self._command = [
            *(sys.executable, "-m", "scheduler", "serve", f"--listen=127.0.0.1:{self._port}"),
            *(f"--http=127.0.0.1:{self._http}", f"--installation={installation}"),
            f"--kubeconfig={plane.kubeconfig('scheduler')}",
            f"--state-dir={plane.directory / f'{name}.state'}",
        ]
        profiles = Profiles(lease_s=LEASE_S, extender=f"http://127.0.0.1:{self._port}")
        written = copy.deepcopy(dict(configuration(profiles)))
        if installation != "here":
            # RBAC lets it write one Lease of kube-scheduler's: another installation has none.
            written["leaderElection"] = {"leaderElect": False}
        self._config = plane.directory / f"{name}.kube-scheduler.json"
        self._config.write_text(json.dumps(written))
        self.log = plane.directory / f"{name}.extender.log"
        self.extender: Process
        self.kube_scheduler: Process

    def __enter__(self) -> Self:
        self.start_extender()
        until(lambda: self.get("/readyz")[0] == 200, f"{self.name} is ready")
        self.start_kube_scheduler()
        return self

    def __exit__(self, *_: object) -> None:
        self.kube_scheduler.kill()
        self.extender.kill()

    def start_extender(self) -> None:
        self.extender = Process(self._command, self.log)

    def start_kube_scheduler(self) -> None:
        self.kube_scheduler = self._plane.start_kube_scheduler(
            self._config, self._plane.kubeconfig("scheduler"), f"{self.name}.kube-scheduler"
        )

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a page; 0 where nobody answers."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{self._http}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    @property
    def holds(self) -> bool:
        return "this process" in self.get("/readyz")[1]
