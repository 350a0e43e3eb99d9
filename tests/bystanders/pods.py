"""Pods that request no share, by the row of docs/failures.md.

They resemble other projects' manifests in host paths, capabilities, namespaces and annotations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gpuslice.contract import names
from lab.node.catalogue import PYTHON_IMAGE
from tests.node.kubelet import Json
from tests.requests import pods

KOORD_SCHEDULER: Final = "koord-scheduler"
OTHER_PLUGIN: Final = "other"
DEBUG_PROFILES: Final = ("general", "baseline", "restricted", "netadmin", "sysadmin")
RDMA: Final = '{"rdma":[{"minor":0,"id":"0000:1f:00.0","resources":{"koordinator.sh/rdma":"100"}}]}'


def container(
    name: str,
    host: Mapping[str, str] | None = None,
    add: Sequence[str] = (),
    security: Mapping[str, Any] | None = None,
    **more: Any,
) -> Json:
    """Return a container. host: the host's path for each path in the container, optionally with
    `:ro` and a mount propagation appended. add: the capabilities that the container adds."""
    host = host or {}
    mounts: list[Json] = []
    for inside, written in host.items():
        _, *options = written.split(":")
        mount = {"name": _volume(written), "mountPath": inside, "readOnly": "ro" in options}
        propagated = [each for each in options if each != "ro"]
        mounts.append(mount | ({"mountPropagation": propagated[0]} if propagated else {}))
    capabilities = {"capabilities": {"add": list(add)}} if add else {}
    return {
        "name": name,
        "image": PYTHON_IMAGE,
        "command": ["sleep", "infinity"],
        "volumeMounts": mounts,
        "securityContext": {**capabilities, **(security or {})},
        "_host": list(host.values()),
        **more,
    }


def pod(name: str, *containers: Json, namespace: str = "default", **more: Any) -> Json:
    metadata = {key: more.pop(key) for key in ("labels", "annotations") if key in more}
    paths = dict.fromkeys(path for each in containers for path in each.pop("_host"))
    volumes = [
        {"name": _volume(path), "hostPath": {"path": path.partition(":")[0]}} for path in paths
    ]
    raw = pods.pod(*containers, scheduler="", name=name, namespace=namespace, **metadata)
    return raw | {"spec": {**raw["spec"], "volumes": volumes, **more}}


def _volume(written: str) -> str:
    return "host" + "".join(each if each.isalnum() else "-" for each in written.lower()).rstrip("-")


_PRIVILEGED: Final = {"privileged": True}
_ON_THE_HOST: Final[Json] = {"hostPID": True, "hostNetwork": True}
_FILE_SYSTEMS: Final = {
    "/host/proc": "/proc:ro",
    "/host/sys": "/sys:ro",
    "/host/root": "/:ro:HostToContainer",
}
_NETWORK: Final = {
    "/var/run/calico": "/var/run/calico",
    "/sys/fs/bpf": "/sys/fs/bpf:Bidirectional",
    "/host/run": "/run",
}
_VOLUMES: Final = {"/var/lib/kubelet": "/var/lib/kubelet:Bidirectional", "/dev": "/dev"}
_OF_GPUS: Final = {
    names.ENV_VISIBLE_DEVICES: "all",
    names.ENV_MEMORY_LIMIT: "1g",
    "LD_PRELOAD": "/opt/lib/libown.so",
}


def _environ(variables: Mapping[str, str]) -> list[Json]:
    return [{"name": name, "value": value} for name, value in variables.items()]


BYSTANDERS: Final[dict[str, Json]] = {
    "an ordinary pod": pod("web", container("nginx")),
    "kubectl debug node, legacy": pod(
        "node-debugger-n1-legacy", container("debugger", {"/host": "/"}), **_ON_THE_HOST
    ),
    "node-exporter": pod(
        "node-exporter", container("node-exporter", _FILE_SYSTEMS), **_ON_THE_HOST
    ),
    "DCGM exporter": pod(
        "dcgm-exporter",
        container(
            "exporter",
            {"/var/lib/kubelet/pod-resources": "/var/lib/kubelet/pod-resources:ro"},
            add=("SYS_ADMIN",),
            env=_environ({"DCGM_EXPORTER_KUBERNETES": "true"}),
        ),
        namespace="gpu-operator",
    ),
    "a monitoring agent with `/` writable": pod(
        "oneagent",
        container(
            "oneagent",
            {"/mnt/root": "/:HostToContainer"},
            add=("DAC_OVERRIDE", "SYS_PTRACE", "SYS_CHROOT", "SETUID", "KILL"),
        ),
        namespace="dynatrace",
        **_ON_THE_HOST,
    ),
    "Istio": pod(
        "sleep",
        container("istio-init", add=("NET_ADMIN", "NET_RAW"), init=True),
        container("istio-proxy", security={"runAsUser": 1337, "readOnlyRootFilesystem": True}),
        container("sleep"),
        annotations={"sidecar.istio.io/status": '{"revision":"default"}'},
    ),
    "a CNI plugin": pod(
        "calico-node",
        container("install-cni", {"/host/opt/cni/bin": "/opt/cni/bin"}, init=True),
        container("calico-node", _NETWORK, security=_PRIVILEGED),
        namespace="calico-system",
        **_ON_THE_HOST,
    ),
    "a CSI driver": pod(
        "csi-node",
        container("node-driver-registrar", {"/registration": "/var/lib/kubelet/plugins_registry"}),
        container("driver", _VOLUMES, security=_PRIVILEGED),
        namespace="csi",
    ),
    "another NRI plugin": pod(
        "nri-resource-policy",
        container("plugin", {"/var/run/nri": "/var/run/nri", "/host/usr/local": "/usr/local"}),
        namespace="nri-plugins",
    ),
    "a pod that requires another NRI plugin": pod(
        "measured",
        container("main"),
        annotations={names.ANNOTATION_REQUIRED_PLUGINS: f'["{OTHER_PLUGIN}"]'},
    ),
    "a CI agent with `/run` and `/var/run` writable": pod(
        "runner", container("runner", {"/run": "/run", "/var/run": "/var/run"}), namespace="ci"
    ),
    "a pod with variables of GPUs": pod("cuda-image", container("main", env=_environ(_OF_GPUS))),
    "a pod to which Koordinator gave RDMA alone": pod(
        "mpi",
        container("worker"),
        annotations={names.ANNOTATION_DEVICE_ALLOCATED: RDMA},
        schedulerName=KOORD_SCHEDULER,
    ),
    "a pod with annotations as KAI's": pod(
        "batch",
        container("worker"),
        annotations={"gpu-memory": "16Gi", "gpu-fraction": "0.5", "mps": "true"},
    ),
}
ROWS: Final = (*BYSTANDERS, *(f"kubectl debug node, {profile}" for profile in DEBUG_PROFILES))
