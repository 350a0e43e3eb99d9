"""The kubelet's side of the CRI, as far as the lab needs it: pods, containers, exec.

Uses the messages of cri_v1 over gRPC. Pods use the host's network, so they need no CNI. Each
container has its own PID namespace, as is Kubernetes' default.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar

import grpc
from google.protobuf.message import Message

from lab.node.cri_v1 import cri_pb2 as pb

_CALL_S: Final = 60.0
_PATH: Final = "/opt/lab/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_PROPAGATION: Final = {
    "None": pb.PROPAGATION_PRIVATE,
    "HostToContainer": pb.PROPAGATION_HOST_TO_CONTAINER,
    "Bidirectional": pb.PROPAGATION_BIDIRECTIONAL,
}

Reply = TypeVar("Reply", bound=Message)


class CriError(RuntimeError):
    """The runtime refused the call. The text is its message."""


class Finished(NamedTuple):
    """Exit status and output of a command in a container."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Process:
    """A container's program and user.

    environ: variables that the pod's author sets. mounts: path inside to path outside. read_mounts:
    the same, read-only. propagation: path inside to Kubernetes' name of the mount's propagation.
    seccomp: whether the runtime's default profile applies, as a pod may request.
    """

    image: str
    command: Sequence[str] = ("/bin/sleep", "infinity")
    environ: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, Path] = field(default_factory=dict)
    read_mounts: Mapping[str, Path] = field(default_factory=dict)
    propagation: Mapping[str, str] = field(default_factory=dict)
    user: int | None = None
    capabilities: Sequence[str] = ()
    read_only: bool = False
    seccomp: bool = False
    privileged: bool = False
    cdi: Sequence[str] = ()
    """Names of CDI devices, as one of the kubelet's device plugins would add them."""
    target: str = ""
    """ID of the container whose PID namespace to join, as by `kubectl debug --target`; "": none."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Unusual properties of a pod's sandbox.

    pid: whether containers use their own PID namespaces, the pod's, or the host's. uid: the UID of
    a pod that had a sandbox before; "": a new UID.
    """

    uid: str = ""
    runtime_handler: str = ""
    pid: Literal["CONTAINER", "POD", "NODE"] = "CONTAINER"
    privileged: bool = False
    user_namespace: bool = False
    namespace: str = "default"

    def namespaces(self) -> pb.NamespaceOption:
        options = pb.NamespaceOption(network=pb.NODE, pid=pb.NamespaceMode.Value(self.pid))
        if self.user_namespace:
            mapping = pb.IDMapping(host_id=1 << 16, container_id=0, length=1 << 16)
            options.network = pb.POD
            options.userns_options.mode = pb.POD
            options.userns_options.uids.append(mapping)
            options.userns_options.gids.append(mapping)
        return options


ORDINARY: Final = Sandbox()


class Cri:
    """A connection to one runtime. The caller closes it."""

    def __init__(self, socket: Path, log_dir: Path, cgroup_parent: str) -> None:
        self._channel = grpc.insecure_channel(f"unix://{socket}")
        self._log_dir = log_dir
        self._cgroup_parent = cgroup_parent

    def close(self) -> None:
        self._channel.close()

    def call(self, method: str, request: Message, reply: type[Reply], wait: bool = False) -> Reply:
        """Call the runtime. wait: repeat the call while the runtime restarts, up to the deadline.

        A restarted runtime answers "not initialized yet" until it has loaded its containers.
        """
        decode: Callable[[bytes], Reply] = reply.FromString
        call: Any = self._channel.unary_unary(
            "/runtime.v1.RuntimeService/" + method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=decode,
        )
        deadline = time.monotonic() + _CALL_S
        while True:
            try:
                answer: Reply = call(request, timeout=_CALL_S, wait_for_ready=wait)
            except grpc.RpcError as error:
                details = error.details()
                absent = (
                    error.code() == grpc.StatusCode.UNAVAILABLE or "not initialized yet" in details
                )
                if not (wait and absent and time.monotonic() < deadline):
                    raise CriError(details) from error
                time.sleep(0.05)
            else:
                return answer

    def version(self) -> str:
        """Wait until the runtime serves. Return its name and version: `containerd v2.4.2`."""
        self.call("ListContainers", pb.Id(), pb.ListContainersResponse, True)
        answer = self.call("Version", pb.Id(), pb.VersionResponse, wait=True)
        return f"{answer.runtime_name} {answer.runtime_version}"

    def run_pod(
        self,
        name: str,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        namespace: str = "default",
        of: Sandbox = Sandbox(),
    ) -> Pod:
        uid = of.uid or secrets.token_hex(8)
        config = pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name=name, uid=uid, namespace=namespace),
            log_directory=str(self._log_dir),
            labels={
                "io.kubernetes.pod.name": name,
                "io.kubernetes.pod.namespace": namespace,
                "io.kubernetes.pod.uid": uid,
                **(labels or {}),
            },
            annotations=annotations or {},
            linux=pb.LinuxPodSandboxConfig(
                cgroup_parent=self._cgroup_parent,
                security_context=pb.LinuxSandboxSecurityContext(
                    namespace_options=of.namespaces(), privileged=of.privileged
                ),
            ),
        )
        request = pb.RunPodSandboxRequest(config=config, runtime_handler=of.runtime_handler)
        return Pod(self, self.call("RunPodSandbox", request, pb.Id).id, config)


class Pod:
    """A running sandbox, in which containers are created."""

    def __init__(self, cri: Cri, identity: str, config: pb.PodSandboxConfig) -> None:
        self.id = identity
        self.cri = cri
        self._config = config

    @property
    def uid(self) -> str:
        return self._config.metadata.uid

    def create(self, name: str, process: Process, attempt: int = 0) -> Container:
        """Create a container, which the agent adjusts or refuses. Raises CriError.

        attempt: how many containers of that name the kubelet has already created in the pod.
        """
        sandbox = self._config.linux.security_context
        security = pb.LinuxContainerSecurityContext(
            namespace_options=sandbox.namespace_options,
            privileged=process.privileged,
            capabilities=pb.Capability(add_capabilities=process.capabilities),
            readonly_rootfs=process.read_only,
        )
        if process.target:
            security.namespace_options.pid = pb.TARGET
            security.namespace_options.target_id = process.target
        if process.seccomp:
            security.seccomp.profile_type = pb.SecurityProfile.RuntimeDefault
        if process.user is not None:
            security.run_as_user.value = process.user
            security.run_as_group.value = process.user
        environ = {"PATH": _PATH, **process.environ}
        config = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name=name, attempt=attempt),
            image=pb.ImageSpec(image=process.image),
            command=process.command,
            envs=[pb.KeyValue(key=key, value=value) for key, value in environ.items()],
            mounts=[
                pb.Mount(
                    container_path=inside,
                    host_path=str(outside),
                    readonly=read,
                    propagation=_PROPAGATION[process.propagation.get(inside, "None")],
                )
                for read, mounts in ((False, process.mounts), (True, process.read_mounts))
                for inside, outside in mounts.items()
            ],
            labels={
                "io.kubernetes.container.name": name,
                "io.kubernetes.pod.name": self._config.metadata.name,
                "io.kubernetes.pod.namespace": self._config.metadata.namespace,
                "io.kubernetes.pod.uid": self.uid,
            },
            log_path=f"{self.uid}-{name}.log",
            CDI_devices=[pb.CDIDevice(name=device) for device in process.cdi],
            linux=pb.LinuxContainerConfig(security_context=security),
        )
        request = pb.CreateContainerRequest(
            pod_sandbox_id=self.id, config=config, sandbox_config=self._config
        )
        return Container(self.cri, self.cri.call("CreateContainer", request, pb.Id).id)

    def run(self, name: str, process: Process) -> Container:
        """Create and start a container. Raises CriError if either is refused."""
        container = self.create(name, process)
        container.start()
        return container

    def remove(self) -> None:
        self.cri.call("StopPodSandbox", pb.Id(id=self.id), pb.Id, wait=True)
        # Remove the containers first, as the kubelet does. containerd removes a sandbox with
        # containers under a lock that it takes twice, and deadlocks if a plugin registers in
        # between.
        listed = self.cri.call("ListContainers", pb.Id(), pb.ListContainersResponse)
        for container in listed.containers:
            if container.pod_sandbox_id == self.id:
                Container(self.cri, container.id).remove()
        self.cri.call("RemovePodSandbox", pb.Id(id=self.id), pb.Id)


class Container:
    def __init__(self, cri: Cri, identity: str) -> None:
        self.id = identity
        self.cri = cri

    def start(self) -> None:
        self.cri.call("StartContainer", pb.Id(id=self.id), pb.Id)

    def stop(self, grace_s: int = 0) -> None:
        request = pb.StopContainerRequest(container_id=self.id, timeout=grace_s)
        self.cri.call("StopContainer", request, pb.Id)

    def remove(self) -> None:
        self.cri.call("RemoveContainer", pb.Id(id=self.id), pb.Id)

    def resize(self, memory_bytes: int) -> None:
        """Change the memory limit, as the kubelet does when a pod is resized in place."""
        request = pb.UpdateContainerResourcesRequest(container_id=self.id)
        request.linux.memory_limit_in_bytes = memory_bytes
        self.cri.call("UpdateContainerResources", request, pb.Id)

    def status(self) -> pb.ContainerStatus:
        answer = self.cri.call("ContainerStatus", pb.Id(id=self.id), pb.ContainerStatusResponse)
        return answer.status

    def exec(self, command: Sequence[str]) -> Finished:
        """Run a command in the container, with its environment, and wait for the end."""
        request = pb.ExecSyncRequest(container_id=self.id, cmd=command, timeout=60)
        answer = self.cri.call("ExecSync", request, pb.ExecSyncResponse)
        out, err = (each.decode(errors="replace") for each in (answer.stdout, answer.stderr))
        return Finished(answer.exit_code, out, err)
