"""A platform's node with the agent of the chart's pod: what they report, and what a share gets.

The pod is what `helm template` renders with default values. The agent's image is the product's own.
The limited container's image is the lab's.
"""

from __future__ import annotations

import http
import json
import os
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from gpuslice.contract import names
from lab.node import cgroups
from lab.node.catalogue import BUSYBOX_IMAGE, Catalogue
from lab.node.containerd_config import PAUSE_IMAGE
from lab.node.cri import CriError, Process
from lab.node.lab import CLUSTER_FILES, Lab
from lab.node.namespace import Inside, children
from tests.chart import rendering
from tests.node.kubelet import Json
from tests.platforms import kubelet, selinux, toml, tree
from tests.platforms.kubelet import Started
from tests.platforms.platform import Platform, Plugin
from tests.support import GIB, ROOT, until
from tools.images import product
from tools.images.table import table

GPU_BYTES: Final = 40 * GIB
SHARE_BYTES: Final = 20 * GIB
AGENT: Final = "gpuslice-agent"
_DISTRIBUTOR: Final = "gpuslice-distributor"
_PORT: Final = 10275
_OUT_OF_MEMORY: Final = 2
_START_S: Final = 120.0
_POLL_S: Final = 0.3
_STARTING: Final = "has not been inspected yet"
_ASK: Final = f"""\
import http.client
asking = http.client.HTTPConnection("127.0.0.1", {_PORT}, timeout=5)
asking.request("GET", "/readyz")
answer = asking.getresponse()
print(answer.status, answer.read().decode())
"""

_LISTENS: Final = """\
import socket, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen(64)
while True:
    listening.accept()[0].close()
"""


@dataclass(frozen=True, slots=True)
class Finding:
    level: str
    found: str
    do: str


def _emulate(spec: Json, directory: Path, policy: str) -> None:
    """Emulate the kernel's part of SELinux in the agent's container (selinux.py)."""
    place = {"path": str(directory / "emulated"), "type": "Directory"}
    spec["volumes"].append({"name": "emulated", "hostPath": place})
    for container in spec["containers"]:
        mount = {"name": "emulated", "mountPath": selinux.INSIDE, "readOnly": True}
        container["volumeMounts"].append(mount)
        variables = {"PYTHONPATH": selinux.INSIDE, selinux.VARIABLE: policy}
        container["env"] += [{"name": key, "value": value} for key, value in variables.items()]


@cache
def _agents_image() -> product.Built:
    return product.ensure(table().recipes["agent"])


@cache
def _images() -> Sequence[Any]:
    wanted = (PAUSE_IMAGE, BUSYBOX_IMAGE)
    return [each for each in Catalogue(CLUSTER_FILES).of_a_cluster() if each.name in wanted]


@dataclass
class Node:
    """A running node (`running`). The agent starts when `start_agent` is called."""

    platform: Platform
    lab: Lab
    _agent: Started | None = None

    # --- the agent ------------------------------------------------------------------------------

    def start_agent(self) -> None:
        """Start the chart's pod. Raises FailedMount, CriError."""
        template = self._template(AGENT)
        if self.platform.selinux:
            _emulate(template["spec"], self.lab.directory, self.platform.selinux)
        self._agent = self._start_pod(template)

    def distribute(self) -> str:
        """Run the distributor's pod until it logs whether it copied the library. Return the log."""
        started = self._start_pod(self._template(_DISTRIBUTOR))
        try:
            until(lambda: "copy of the library" in started.log("distributor"), "it says so")
            return started.log("distributor")
        finally:
            started.pod.remove()

    def _template(self, daemon_set: str) -> Json:
        found = rendering.one(rendering.objects({}), "DaemonSet", daemon_set)
        template: Json = found["spec"]["template"]
        key, _, value = self.platform.label.partition("=")
        assert rendering.runs_on(template["spec"], {key: value})
        return template

    def _start_pod(self, template: Json) -> Started:
        names_here = {
            each["image"]: _agents_image().name for each in template["spec"]["containers"]
        }
        return kubelet.start(self.lab.namespace, self.lab.cri, template, names_here)

    def log(self) -> str:
        return self._agent.log("agent") if self._agent else ""

    def readyz(self) -> tuple[int, str]:
        """Return the status and text of /readyz. The status is 0 if the agent does not answer."""
        done = self.lab.namespace.run([sys.executable, "-I", "-S", "-c", _ASK])
        status, _, text = done.stdout.partition(" ")
        return (int(status), text.strip()) if done.returncode == 0 else (0, done.stderr.strip())

    def outcome(self, because: str = "") -> str:
        """Wait until the agent is ready, or is not ready for a reason with these words.

        Return "", or the reason. Raises AssertionError if neither happens in time.
        """
        deadline = time.monotonic() + _START_S
        while True:
            status, text = self.readyz()
            if status == http.HTTPStatus.OK:
                return ""
            if because and because in text and _STARTING not in text:
                return text
            if time.monotonic() > deadline:
                raise AssertionError(f"not ready: {status} {text}\n{self.log()[-6000:]}")
            time.sleep(_POLL_S)

    def doctor(self) -> Mapping[str, Finding]:
        """Return the worst finding of each check, from a doctor in the agent's container."""
        assert self._agent is not None
        agent = self._agent.containers["agent"]
        done = agent.exec(["python", "-m", "nri_plugin", "doctor", "--json"])
        assert done.out, done.err
        worst_last = sorted(
            reversed(json.loads(done.out)["checks"]),
            key=lambda each: ("ok", "warn", "fail").index(each["level"]),
        )
        return {
            each["check"]: Finding(each["level"], each["found"], each.get("do", ""))
            for each in worst_last
        }

    # --- the host -------------------------------------------------------------------------------

    def configure(self, change: Mapping[str, Any]) -> None:
        """Merge a change into containerd's configuration, as the platform does at boot."""
        described = self.platform.containerd
        path, table = next(iter(described.imported.items()), (described.file, None))
        changed = toml.merged(table or tree.containerd_table(described), change)
        # On the platform a program with the right to do so writes this file.
        self.lab.namespace.mount("-o", "remount,bind,rw", f"/{Path(path).parts[1]}")
        self.lab.namespace.write(Path(path), toml.text(changed))
        self.lab.containerd.stop()
        self.lab.containerd.start()
        until(self._serves_cri, "containerd serves the kubelet again")

    def _serves_cri(self) -> bool:
        assert self._agent is not None
        try:
            self._agent.containers["agent"].status()
        except CriError:
            return False
        return True

    def start_plugin(self, plugin: Plugin) -> None:
        """Start what others see of a device plugin: a program that accepts connections."""
        command = [sys.executable, "-I", "-S", "-c", _LISTENS, f"{tree.PLUGINS}/{plugin.socket}"]
        listening = self._start(command)
        if plugin.service:
            until(lambda: children(listening.entering.pid), "the device plugin has started")
            (pid,) = children(listening.entering.pid)
            # Use any hierarchy of cgroups: that of cgroup v2, or one of v1.
            unified = (cgroups.ROOT / "cgroup.procs").exists()
            hierarchy = cgroups.ROOT if unified else cgroups.ROOT / "pids"
            group = hierarchy / self.lab.namespace.cgroup / plugin.service
            group.mkdir(parents=True, exist_ok=True)
            (group / "cgroup.procs").write_text(str(pid))

    def start_crio(self) -> None:
        """Start a runtime with CRI-O's name at the usual socket (crio.py)."""
        program = self.lab.directory / "crio"
        program.symlink_to(Path(sys.executable).resolve())
        path = os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])
        command: list[str | Path] = [program, "-m", "tests.platforms.crio", "/var/run/nri/nri.sock"]
        self._start(command, {"PYTHONPATH": path})

    def _start(
        self, command: Sequence[str | Path], environ: Mapping[str, str] | None = None
    ) -> Inside:
        with (self.lab.directory / "services.log").open("a") as log:
            return self.lab.namespace.start(command, log, log, environ)

    # --- a share --------------------------------------------------------------------------------

    def sees_gpus(self) -> bool:
        """Return whether a container without a share gets a GPU by NVIDIA_VISIBLE_DEVICES=all."""
        process = Process(BUSYBOX_IMAGE, environ={names.ENV_VISIBLE_DEVICES: "all"})
        with self.lab.pod("bystander") as pod:
            container = pod.run("main", process)
            return container.exec(["test", "-e", "/dev/nvidia0"]).code == 0

    def check_limit(self) -> None:
        """Check that a container with half of the GPU sees that half as the GPU, can allocate all
        of it, and is refused more. Raises CriError, AssertionError."""
        share = self.lab.share({"main": [(0, SHARE_BYTES, 50)]})
        process = Process(BUSYBOX_IMAGE, mounts={str(tree.SIMULATED): tree.SIMULATED})
        with self.lab.pod("half", share) as pod:
            container = pod.run("main", process)
            done = container.exec(["cuda-probe"])
        assert done.code == 0, done
        taken = json.loads(done.out.splitlines()[-1])
        seen = (taken["init"], taken["total"], taken["filled"], taken["more"])
        assert seen == (0, SHARE_BYTES, 0, _OUT_OF_MEMORY), taken


@contextmanager
def running(platform: Platform, crio: bool = False) -> Iterator[Node]:
    """Run a node. crio: its runtime is CRI-O, and the agent finds no containerd."""
    host = tree.Tree(platform, crio).host()
    with Lab([GPU_BYTES], load=False, on_host=host) as lab:
        lab.load(_images())
        tree.boot(lab.namespace, platform)
        lab.containerd.import_image(_agents_image().path)
        node = Node(platform, lab)
        if crio:
            node.start_crio()
        yield node
