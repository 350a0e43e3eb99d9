"""The node agent's data types: pod, container, GPU, share, claim, CDI device.

Plain values without behaviour or I/O, so that the policy can be tested without a runtime. Only
translate.py converts NRI's protobuf messages to these types and back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

from gpuslice.contract import names


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
        """Return the fields that identify it and one of its containers in a log line."""
        pod = {"namespace": self.namespace, "pod": self.name, "uid": self.uid}
        return {**pod, "container": container, "container_id": container_id}


class Mount(NamedTuple):
    """One OCI mount; sources are paths on the host."""

    destination: str
    source: str = ""
    options: Sequence[str] = ()
    type: str = "bind"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A physical GPU of this node, as NVML reports it.

    memory_bytes: allocatable memory; reserved_bytes: what the driver reserves in addition. numa,
    root: its position on the board; None and "" if not reported. link: GPUs with equal links are
    connected by NVLink; "": not connected. problem: why it cannot be used; its memory may then be
    reported as 0. bus_id: its PCI address, as in 0000:3b:00.0; "" if not known. index: NVML's, as
    nvidia-smi shows it. model: NVML's name of the product; "" if not known.
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

    @property
    def most_bytes(self) -> int:
        """Upper bound of a share: one granted before the driver reserved memory stays valid."""
        return self.memory_bytes + self.reserved_bytes


@dataclass(frozen=True, slots=True)
class Share:
    """A container's part of one GPU: the content of its grant file. uncapped: no compute was
    requested. core_percent is 100, and no compute of the GPU is granted."""

    uuid: str
    minor: int
    memory_bytes: int
    core_percent: int
    uncapped: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """Shares that a container may hold; none: no GPU. shared: the pod's containers share a grant.

    allocated: the pod's allocation of the same GPUs, the upper bound for its running containers
    together. warning: why a container that appears to expect a GPU has none. env: further variables
    for its programs. by_index: they expect minors in NVIDIA_VISIBLE_DEVICES, not UUIDs; NVIDIA's
    runtime gets neither.
    """

    shares: Sequence[Share] = ()
    shared: bool = False
    allocated: Sequence[Share] = ()
    warning: str = ""
    env: Sequence[tuple[str, str]] = ()
    by_index: bool = False


class ClaimSource(Protocol):
    """Source of containers' claims on GPUs. A module may be one: annotation_claims.py."""

    def may_claim(self, labels: Mapping[str, str], annotations: Mapping[str, str]) -> bool:
        """Whether a pod may have claims; all others are answered at once."""

    def has_shares(self, pod: Pod) -> bool:
        """Whether the pod was given GPUs; a claim that cannot be read counts."""

    def claim(self, pod: Pod, container_name: str, gpus: Sequence[Gpu]) -> Claim | None:
        """Return the container's claim on these GPUs of the node; None: its pod has none. Raises
        Refused if it cannot be fulfilled, as by GPU_UNKNOWN for another GPU."""

    def is_uncapped(self, pod: Pod, uuid: str, minor: int) -> bool:
        """Whether the pod claims none of the GPU's compute; independent of the node's GPUs."""


class Device(NamedTuple):
    """A device node in the container."""

    path: str
    type: str
    major: int
    minor: int
    file_mode: int | None = None
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True)
class Container:
    """A container about to be created; `env` has its "KEY=VALUE" lines, duplicates included.

    devices, cdi_names: what device plugins and the runtime gave it before us; creation.py
    reduces the CDI names to those that inject a GPU before the policy decides. privileged: it may
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
    """When an OCI hook runs; values are CDI's names of the stages."""

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
    """A GPU's CDI device: its own edits, and those that its spec applies to all its devices.

    problem: why the device cannot be used as described; None if it can. also_in: other files of the
    same directory that define it, too.
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
    """The CDI devices of our kinds by name, and what could not be read."""

    devices: Mapping[str, CdiDevice] = field(default_factory=dict)
    problems: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Paths:
    """Host paths of what containers mount, and how GPUs are injected, by the operator's settings.

    library: the store's file; None if there is none, and then `library_problem` states why.
    forwarders: by soname, what strict mode mounts over the driver's libraries; empty: not strict.
    capabilities: of the driver, those that containers may request beyond compute and utility.
    nvidia_default: the default runtime is, or may be, NVIDIA's, and injects what the variables
    name.
    """

    run_dir: str
    library: str | None
    library_problem: str = ""
    forwarders: Mapping[str, str] = field(default_factory=dict)
    capabilities: Set[str] = frozenset()
    nvidia_default: bool = False
