"""Does the kubelet's work for a DaemonSet's pod by CRI, on a node of the lab.

It uses what the chart rendered: volumes by type, mounts with their propagation, security, the
environment and commands. It leaves out init containers, probes, restarts, limits, and service
accounts, so that the agent has no API server. The sandbox is always privileged.

Source: pkg/volume/hostpath (types), pkg/kubelet/kuberuntime of Kubernetes.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from gpuslice.gpu.driver_root import resolve
from lab.node.cri import Container, Cri, Pod, Sandbox
from lab.node.namespace import Namespace
from tests.node.kubelet import Json, process
from tools.images.table import table

NODE: Final = "node"
_FIELDS: Final = {"spec.nodeName": NODE}
_CHECKS: Final[Mapping[str, Callable[[int], bool]]] = {
    "Directory": stat.S_ISDIR,
    "DirectoryOrCreate": stat.S_ISDIR,
    "File": stat.S_ISREG,
    "FileOrCreate": stat.S_ISREG,
    "Socket": stat.S_ISSOCK,
    "CharDevice": stat.S_ISCHR,
}


class FailedMount(Exception):
    """A volume cannot be mounted, and the pod does not start. The text is the kubelet's event."""


class Started:
    """A running pod. containers: by name."""

    def __init__(self, pod: Pod, containers: Mapping[str, Container], logs: Path) -> None:
        self.pod = pod
        self.containers = containers
        self._logs = logs

    def log(self, container: str) -> str:
        """Return the container's output, without what containerd writes before each line."""
        file = self._logs / f"{self.pod.uid}-{container}.log"
        lines = file.read_text(errors="replace").splitlines() if file.exists() else []
        return "".join(f"{line.split(' ', 3)[-1]}\n" for line in lines)


def start(namespace: Namespace, cri: Cri, template: Json, images: Mapping[str, str]) -> Started:
    """Start the pod of a DaemonSet's template. images: the lab's image by the name in the template.

    Raises FailedMount, and CriError if the runtime refuses.
    """
    spec = template["spec"]
    sources = {each["name"]: _source(namespace, each) for each in spec["volumes"]}
    pod = cri.run_pod(
        template["metadata"]["labels"]["app.kubernetes.io/name"],
        labels=template["metadata"]["labels"],
        namespace="gpuslice-system",
        of=Sandbox(pid="NODE" if spec.get("hostPID") else "CONTAINER", privileged=True),
    )
    containers = {}
    for container in spec["containers"]:
        environ = {each["name"]: _value(each) for each in container.get("env", ())}
        image = images[container["image"]]
        made = process(container, image, sources, {"PATH": table().path, **environ})
        containers[container["name"]] = pod.run(container["name"], made)
    return Started(pod, containers, namespace.directory / "pods")


def _source(namespace: Namespace, volume: Json) -> Path:
    """Return the volume's path on the host. Raises FailedMount."""
    if "hostPath" in volume:
        return _host_path(namespace, volume)
    if "emptyDir" not in volume:
        raise FailedMount(f"volume {volume['name']}: no such kind here: {[*volume]}")
    made = Path("/var/lib/kubelet/pods/volumes", volume["name"])
    namespace.outside(made).mkdir(parents=True, exist_ok=True)
    if volume["emptyDir"].get("medium") == "Memory":
        namespace.mount("-t", "tmpfs", "tmpfs", made)
    return made


def _host_path(namespace: Namespace, volume: Json) -> Path:
    path, kind = volume["hostPath"]["path"], volume["hostPath"].get("type", "")
    seen = resolve(namespace.outside(Path("/")), path)
    if kind == "DirectoryOrCreate" and not seen.exists():
        try:
            seen.mkdir(mode=0o755, parents=True)
        except OSError as error:
            raise FailedMount(f"hostPath {path}: {error.strerror}") from error
    if kind and not (seen.exists() and _CHECKS[kind](seen.stat().st_mode)):
        raise FailedMount(f"hostPath type check failed: {path} is not a {kind}")
    return Path(path)


def _value(variable: Json) -> str:
    if "valueFrom" in variable:
        return _FIELDS[variable["valueFrom"]["fieldRef"]["fieldPath"]]
    return str(variable["value"])
