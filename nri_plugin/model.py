"""The node agent's nouns: what a pod asks, what a GPU is, what an adjustment holds.

Plain values, no behaviour and no I/O, so that the policy can be decided and tested without a
runtime. The protobuf messages of NRI are turned into these, and back, in translate.py alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum

from contract import overhead


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod sandbox, as the runtime tells it."""

    uid: str
    namespace: str
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    runtime_handler: str = ""


@dataclass(frozen=True, slots=True)
class Mount:
    """One OCI mount; sources are paths on the host."""

    destination: str
    source: str = ""
    options: Sequence[str] = ()
    type: str = "bind"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A physical GPU of this node, as NVML tells it.

    memory_bytes: what can be allocated; reserved_bytes: what the driver keeps for itself beside it.
    numa, root: where it is on the board; None and "" where nobody says. link: GPUs of equal links
    reach each other by NVLink; "": it reaches none. problem: why it cannot be used; then its memory
    may be told as 0. bus_id: its PCI address, as in 0000:3b:00.0; "" where it is not known.
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

    @property
    def most_bytes(self) -> int:
        """A share that was granted before the driver reserved as much stays valid."""
        return self.memory_bytes + self.reserved_bytes


@dataclass(frozen=True, slots=True)
class Share:
    """A container's part of one GPU: what its grant file will say.

    uncapped: no compute was asked for. core_percent is 100, and nothing of the GPU's is granted.
    """

    uuid: str
    minor: int
    memory_bytes: int
    core_percent: int
    uncapped: bool = False


@dataclass(frozen=True, slots=True)
class Floor:
    """What a process is charged at once, beside what it allocates.

    context_bytes: for a context, by GPU UUID, as far as it is known. code_bytes: for code, with
    its first context. managed_free: managed memory is not charged.
    """

    context_bytes: Mapping[str, int] = field(default_factory=dict)
    code_bytes: int = overhead.CODE_BYTES
    managed_free: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """What a container was granted; no shares: no GPU. shared: its pod's containers have one.

    allocated: what the pod was of the same GPUs, which its containers that live hold together at
    most. warning: why a container that seems to expect a GPU has none.
    """

    shares: Sequence[Share] = ()
    shared: bool = False
    allocated: Sequence[Share] = ()
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Device:
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
    """A container about to be created; `env` are its "KEY=VALUE" lines, doubles included.

    devices, cdi_names: what it has been given before us, by device plugins and the runtime; of CDI
    names, only those that bring a GPU are left when it is decided (brought.py).
    privileged: it may use every device of the host.
    """

    id: str
    name: str
    env: Sequence[str] = ()
    mounts: Sequence[Mount] = ()
    devices: Sequence[Device] = ()
    cdi_names: Sequence[str] = ()
    privileged: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator decides.

    runtime_handlers: those under which a container may hold a GPU: they run it on this kernel,
    where our mounts hold. "" is the runtime's default. capabilities: that a container with a GPU
    may have, though it can take its limit away with them.
    """

    runtime_handlers: Sequence[str] = ("", "runc", "crun", "nvidia", "nvidia-cdi", "nvidia-legacy")
    capabilities: Set[str] = frozenset()


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
    """What a CDI spec adds to a container."""

    env: Sequence[tuple[str, str]] = ()
    devices: Sequence[Device] = ()
    mounts: Sequence[Mount] = ()
    hooks: Sequence[Hook] = ()


@dataclass(frozen=True, slots=True)
class CdiDevice:
    """A GPU's CDI device: its own edits, and those that its spec makes for any of its devices.

    problem: why the device cannot be used as described, for people; None if it can.
    """

    name: str
    file: str
    own: Edits = Edits()
    common: Edits = Edits()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Specs:
    """The CDI devices of our kind, by name, and what could not be read on the way."""

    devices: Mapping[str, CdiDevice] = field(default_factory=dict)
    problems: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Bringing:
    """How the operator wants GPUs to be brought.

    capabilities: of the driver, that containers may ask for beyond compute and utility. by_name:
    the runtime is asked for the CDI device, instead of our applying its spec; where it cannot do
    that, `by_name_problem` says why.
    """

    capabilities: Set[str] = frozenset()
    by_name: bool = False
    by_name_problem: str | None = None


@dataclass(frozen=True, slots=True)
class Paths:
    """Where the host keeps what containers mount, and how they are brought it.

    library: the store's file; None where there is none, and then `library_problem` says why.
    forwarders: by soname, what strict mode mounts over the driver's libraries; empty: not strict.
    """

    run_dir: str
    library: str | None
    library_problem: str = ""
    forwarders: Mapping[str, str] = field(default_factory=dict)
    bringing: Bringing = Bringing()


@dataclass(frozen=True, slots=True)
class Adjustment:
    """What a container gets. `key` names its directory under the run directory; None: no GPU.

    shared: the directory belongs to the pod, and its other containers use it too. cdi_devices: what
    the runtime is asked for by name. cut: driver capabilities that were asked for and not given.
    allocated: the pod's shares, of which `shares` are this container's part. warning: why a
    container that seems to expect a GPU has none.
    """

    env: Sequence[tuple[str, str]]
    key: str | None = None
    shared: bool = False
    shares: Sequence[Share] = ()
    mounts: Sequence[Mount] = ()
    devices: Sequence[Device] = ()
    hooks: Sequence[Hook] = ()
    cdi_devices: Sequence[str] = ()
    cut: Sequence[str] = ()
    allocated: Sequence[Share] = ()
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Untouched:
    """Not ours: no GPU, no limit, no edit.

    given: the GPU that somebody else gave to a container of a pod of ours; empty: none.
    """

    given: str = ""
