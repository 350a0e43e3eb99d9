"""Runs the API server's pods on the lab's containerd, and reads their containers' OCI specs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from lab.node.cri import Container, Pod, Sandbox
from lab.node.cri_v1 import cri_pb2 as pb
from lab.node.lab import Lab
from nri_plugin.host import bundle
from tests.node.kubelet import Json, process, security

_REAL: Final = ("/", "/proc", "/sys", "/dev")
"""Host paths that are this machine's in the lab, too. The lab has its own directory for others."""


@dataclass(frozen=True)
class Running:
    pod: Pod
    containers: tuple[Container, ...]

    def running(self) -> bool:
        return all(each.status().state == pb.CONTAINER_RUNNING for each in self.containers)

    def specifications(self, lab: Lab) -> list[str]:
        """Return each container's runtime specification, without the parts that always differ."""
        return [_plain(lab, self.pod, each) for each in self.containers]


def start(lab: Lab, raw: Json) -> Running:
    """Start the pod's containers. Raises CriError if the runtime refuses a container."""
    metadata, spec = raw["metadata"], raw["spec"]
    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    privileged = any(security(each).get("privileged", False) for each in containers)
    pid: Literal["NODE", "CONTAINER"] = "NODE" if spec.get("hostPID") else "CONTAINER"
    namespace = metadata.get("namespace", "default")
    pod = lab.cri.run_pod(
        metadata["name"],
        metadata.get("annotations", {}),
        metadata.get("labels", {}),
        namespace,
        Sandbox(pid=pid, privileged=privileged, namespace=namespace),
    )
    volumes = {each["name"]: _path(lab, each) for each in spec.get("volumes", ())}
    made = []
    for each in containers:
        environ = {variable["name"]: variable["value"] for variable in each.get("env", ())}
        made.append(pod.run(each["name"], process(each, each["image"], volumes, environ)))
    return Running(pod, tuple(made))


def _path(lab: Lab, volume: Json) -> Path:
    """Return the directory of the lab that stands for the volume's path on the host."""
    if "hostPath" not in volume:
        return _own(lab, volume["name"])
    path = volume["hostPath"]["path"]
    if path in _REAL:
        return Path(path)
    the_agents = {
        "/run": lab.run_dir.parent,
        "/var/run": lab.run_dir.parent,
        "/var/run/nri": lab.containerd.paths.nri_socket.parent,
    }
    return the_agents.get(path) or _own(lab, path.strip("/"))


def _own(lab: Lab, name: str) -> Path:
    place = lab.directory / "host" / name
    place.mkdir(parents=True, exist_ok=True)
    return place


def _plain(lab: Lab, pod: Pod, container: Container) -> str:
    written = bundle.directory(lab.containerd.paths.state, container.id) / "config.json"
    text = json.dumps(json.loads(written.read_text()), indent=1, sort_keys=True)
    for own in (container.id, pod.id, pod.uid):
        text = text.replace(own, "OWN")
    return re.sub(r"/proc/\d+/ns", "/proc/OWN/ns", text)
