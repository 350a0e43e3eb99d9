"""A whole cluster with the commands that a user has: cluster commands, kubectl and Helm.

Each cluster has a directory of its own, so any number of them run beside one another.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuslice.contract import names
from lab.cluster.directory import MARK, processes
from lab.cluster.product import RELEASE, run_helm
from tests.support import run, until
from tools.chart import CHART

Done = subprocess.CompletedProcess[str]


class Whole:
    """A cluster, which the test starts and ends. gpus: the argument of --gpus. bare: whether to
    leave out gpuslice. dialects: the dialects that are switched on besides Koordinator's."""

    def __init__(self, gpus: str, bare: bool = False, dialects: Sequence[str] = ()) -> None:
        self.directory = Path(f"/tmp/gs-{secrets.token_hex(4)}")
        self._gpus = gpus
        self._options = ["--bare"] if bare else ["--serve", "koord-scheduler"]
        self._options += ["--dialects", ",".join(dialects)]

    def command(self, *arguments: str) -> Done:
        line = [sys.executable, "-m", "lab.cluster", *arguments, "--at", str(self.directory)]
        return run(*line, timeout=280)

    def up(self) -> str:
        done = self.command("up", "--gpus", self._gpus, *self._options)
        assert done.returncode == 0, done.stderr
        return done.stderr

    @property
    def state(self) -> Mapping[str, Any]:
        state: Mapping[str, Any] = json.loads((self.directory / "state.json").read_text())
        return state

    @property
    def owner(self) -> int:
        return int((self.directory / "owner").read_text())

    @property
    def root(self) -> Path:
        """The node's root directory, as a path on this machine. A part that restarts has no PID."""
        pids = (self.state["parts"][part]["pid"] for part in ("containerd", "kubelet"))
        return Path(f"/proc/{next(filter(None, pids))}/root")

    def pid(self, part: str) -> int:
        return int(self.state["parts"][part]["pid"])

    def kill(self, pid: int) -> None:
        """Kill a process, which must be one of this cluster."""
        assert f"{MARK}={self.directory}" in Path(f"/proc/{pid}/environ").read_text().split("\0")
        os.kill(pid, signal.SIGKILL)

    def marked(self) -> list[int]:
        """Return the PIDs of all processes of the cluster, without those in users' pods."""
        return list(processes(self.directory))

    def first(self) -> int:
        """Return the PID of the process that is number 1 in the cluster's PID namespace."""
        for pid in self.marked():
            status = Path(f"/proc/{pid}/status").read_text()
            if re.search(r"^NSpid:\t\d+\t1$", status, re.MULTILINE):
                return pid
        raise AssertionError("the namespaces have no first process")

    def well(self) -> bool:
        return self.command("status").returncode == 0

    def kubectl(self, *arguments: str, given: str = "") -> str:
        done = self.try_kubectl(*arguments, given=given)
        assert done.returncode == 0, f"kubectl {arguments}: {done.stderr}"
        return done.stdout

    def events(self, pod: str) -> str:
        return self.kubectl("get", "events", f"--field-selector=involvedObject.name={pod}")

    def try_kubectl(self, *arguments: str, given: str = "") -> Done:
        cache = f"{self.state['directory']}/kubectl"
        options = (f"--kubeconfig={self.directory}/kubeconfig", f"--cache-dir={cache}")
        return run(self.state["kubectl"], *options, *arguments, input=given, timeout=120)

    def helm(self, *arguments: str) -> str:
        done = self.try_helm(*arguments)
        assert done.returncode == 0, f"helm {arguments}: {done.stderr}"
        return done.stdout

    def try_helm(self, *arguments: str) -> Done:
        """Run Helm in gpuslice's namespace of this cluster."""
        lab = Path(self.state["directory"])
        return run_helm(self.directory / "kubeconfig", lab, *arguments)

    def install(self, *options: str) -> None:
        done = self.try_install(*options)
        assert done.returncode == 0, done.stderr

    def try_install(self, *options: str) -> Done:
        """Install gpuslice, or upgrade it, and wait until its pods are ready."""
        chosen = ("--create-namespace", f"--values={self.state['values']}", "--wait")
        return self.try_helm("upgrade", "--install", RELEASE, str(CHART), *chosen, *options)

    def make_pod(
        self,
        name: str,
        limits: Mapping[str, Any] | None = None,
        command: str = "echo hello from $HOSTNAME; sleep 1d",
    ) -> None:
        """Create a long-running pod. `limits` are added to small limits of processor and memory."""
        container = {
            "name": "main",
            "image": "busybox",
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", command],
            "resources": {"limits": {"cpu": "40m", "memory": "40Mi", **(limits or {})}},
        }
        is_share = any(key.startswith("koordinator.sh/") for key in limits or ())
        scheduler = {"schedulerName": names.SCHEDULER_NAME} if is_share else {}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 0, **scheduler}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        self.kubectl("create", "-f", "-", given=json.dumps(pod))

    def run_pod(self, name: str, limits: Mapping[str, Any] | None = None, **of: str) -> None:
        """Create a pod, and wait until it is Ready."""
        self.make_pod(name, limits, **of)
        self.ready(name)

    def ready(self, name: str) -> None:
        self.kubectl("wait", "--for=condition=Ready", "--timeout=100s", f"pod/{name}")

    def allocated(self, name: str) -> str:
        """Return the text of the pod's allocation annotation."""
        annotations = self.pod(name)["metadata"]["annotations"]
        return str(annotations[names.ANNOTATION_DEVICE_ALLOCATED])

    def pod(self, name: str) -> Any:
        return json.loads(self.kubectl("get", "pod", name, "-o", "json"))

    def restarts(self, name: str) -> int:
        """Return how often the pod's only container was restarted. It must be ready."""
        (status,) = self.pod(name)["status"]["containerStatuses"]
        assert status["ready"]
        return int(status["restartCount"])

    def gpu(self, name: str, query: str) -> str:
        """Return the answer of nvidia-smi in the pod to a query."""
        options = f"--format=csv,noheader,nounits --query-gpu={query}"
        return self.inside(name, f"nvidia-smi {options}").strip()

    def until_back(self, part: str, before: int, within_s: float = 120.0) -> None:
        """Wait until the part of the cluster runs with another PID than `before`."""

        def is_back() -> bool:
            return self.state["parts"][part]["pid"] not in (before, None)

        until(is_back, f"{part} is back", within_s)

    def restart(self, part: str) -> None:
        """Kill the part, and wait until the cluster has started it again."""
        before = self.pid(part)
        self.kill(before)
        self.until_back(part, before)
        until(self.well, "the cluster is well")

    def answers(self, pod: str) -> bool:
        """Return whether a program can be executed in the pod."""
        return self.try_kubectl("exec", pod, "--", "true").returncode == 0

    def inside(self, pod: str, script: str) -> str:
        return self.kubectl("exec", pod, "--", "bash", "-c", script)


def allocatable(whole: Whole, resource: str) -> str:
    """Return the node's allocatable amount of the resource, or "" if the node has none."""
    path = f"jsonpath={{.status.allocatable.{resource.replace('.', chr(92) + '.')}}}"
    return whole.kubectl("get", "node", whole.state["node"], "-o", path)


HALF = {names.RESOURCE_CORE: 50, names.RESOURCE_MEMORY_RATIO: 50, names.RESOURCE_SHARED: 1}
WHOLE_GPU = {names.RESOURCE_GPU: 100}


@contextmanager
def running(gpus: str, bare: bool = False, dialects: Sequence[str] = ()) -> Iterator[Whole]:
    """Run a cluster during the block."""
    whole = Whole(gpus, bare, dialects)
    try:
        whole.up()
        yield whole
    finally:
        assert whole.command("down").returncode == 0
