"""The node agent's data types: pod, container, GPU, share, claim, CDI device.

The policy uses these values instead of NRI's messages. Therefore the policy can be tested without a
runtime. Only translate.py converts NRI's protobuf messages to these types and back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from gpuslice.contract import names
from gpuslice.contract.grant_file import Policy


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod sandbox, as the runtime reports it."""

    uid: str
    namespace: str
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    runtime_handler: str = ""

    def log_fields(self, container: str, container_id: str | None = None) -> Mapping[str, Any]:
        """Return the fields of a log line that name the pod and one of its containers."""
        pod = {"namespace": self.namespace, "pod": self.name, "uid": self.uid}
        return {**pod, "container": container, "container_id": container_id}


class Mount(NamedTuple):
    """One OCI mount. source: a path on the host."""

    destination: str
    source: str = ""
    options: Sequence[str] = ()
    type: str = "bind"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A physical GPU of this node, as NVML reports it.

    memory_bytes: allocatable memory, 0 if it cannot be read. reserved_bytes: memory that the driver
    reserves in addition. numa: the NUMA node, None if not known. root: the PCI root, "" if not
    known. link: equal for GPUs that NVLink connects, else "". problem: why the GPU cannot be used.
    bus_id: its PCI address, for example 0000:3b:00.0. index: its number in nvidia-smi. model: the
    product's name in NVML. bus_id and model are "" if not known. lost: the programs that used it
    when it failed cannot continue.
    """

    uuid: str
    minor: int
    memory_bytes: int
    numa: int | None = None
    root: str = ""
    link: str = ""
    problem: str = ""
    reserved_bytes: int = 0
    bus_id: str = ""
    index: int | None = None
    model: str = ""
    lost: bool = False

    @property
    def most_bytes(self) -> int:
        """The largest valid share. It includes the memory that the driver reserves, because a share
        may have been granted before the driver reserved the memory."""
        return self.memory_bytes + self.reserved_bytes


@dataclass(frozen=True, slots=True)
class Share:
    """A container's part of one GPU, as in its grant file. uncapped: it requested no compute.
    Then core_percent is 100, but the ledger counts no compute."""

    uuid: str
    minor: int
    memory_bytes: int
    core_percent: int
    uncapped: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """The shares that a container may hold. Without shares it gets no GPU.

    shared: the pod's containers share one grant. allocated: the pod's allocation of these GPUs,
    which its running containers together must not exceed. warning: why the container has no GPU,
    although it appears to expect one. env: further variables for its programs. by_index: its
    programs expect minors in NVIDIA_VISIBLE_DEVICES instead of UUIDs. policy: its compute policy.
    None: the node's default. key: the grant's key; "": as plan.grant_key returns it.
    """

    shares: Sequence[Share] = ()
    shared: bool = False
    allocated: Sequence[Share] = ()
    warning: str = ""
    env: Sequence[tuple[str, str]] = ()
    by_index: bool = False
    policy: Policy | None = None
    key: str = ""


class Device(NamedTuple):
    path: str
    type: str
    major: int
    minor: int
    file_mode: int | None = None
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True)
class Container:
    """A container that the runtime is creating. env: its lines "KEY=VALUE", with duplicates.

    devices, cdi_names: what device plugins and the runtime gave the container before us. Before the
    policy decides, lifecycle.py removes CDI names that inject no GPU. privileged: the container may
    use every device of the host.
    """

    id: str
    name: str
    env: Sequence[str] = ()
    mounts: Sequence[Mount] = ()
    devices: Sequence[Device] = ()
    cdi_names: Sequence[str] = ()
    privileged: bool = False


class HookStage(Enum):
    """When an OCI hook runs. The values are CDI's names of the stages."""

    PRESTART = "prestart"
    CREATE_RUNTIME = "createRuntime"
    CREATE_CONTAINER = "createContainer"
    START_CONTAINER = "startContainer"
    POSTSTART = "poststart"
    POSTSTOP = "poststop"


@dataclass(frozen=True, slots=True)
class Hook:
    """A program that the runtime runs around the container's start."""

    stage: HookStage
    path: str
    args: Sequence[str] = ()
    env: Sequence[str] = ()
    timeout_s: int | None = None


@dataclass(frozen=True, slots=True)
class Edits:
    """A CDI spec's additions to a container."""

    env: Sequence[tuple[str, str]] = ()
    devices: Sequence[Device] = ()
    mounts: Sequence[Mount] = ()
    hooks: Sequence[Hook] = ()


@dataclass(frozen=True, slots=True)
class CdiDevice:
    """A GPU's CDI device. own: its edits. common: the edits of its spec for all of its devices.

    problem: why the device cannot be used, None if it can. also_in: other files of the same
    directory that define the same device.
    """

    name: str
    file: str
    own: Edits = Edits()
    common: Edits = Edits()
    problem: str | None = None
    kind: str = names.CDI_KIND
    also_in: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Specs:
    """The CDI devices by GPU. problems: the specs that cannot be read."""

    devices: Mapping[str, CdiDevice] = field(default_factory=dict)
    problems: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Paths:
    """Host paths of what containers mount, and the settings of the injection.

    library: the file in the store. If it is None, `library_problem` states why. forwarders: the
    files that strict mode mounts over the driver's libraries, by soname, else empty. capabilities:
    driver capabilities that containers may request in addition to compute and utility.
    nvidia_default: the default runtime may be NVIDIA's, which injects GPUs by variables.
    """

    run_dir: str
    library: str | None
    library_problem: str = ""
    forwarders: Mapping[str, str] = field(default_factory=dict)
    capabilities: Set[str] = frozenset()
    nvidia_default: bool = False
