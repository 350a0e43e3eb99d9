"""What a platform's GPU node is made of, as data: each platform's file has one value of `Platform`.

Paths are the host's. Where a field has a default, it is a distribution's with NVIDIA's packages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Table = Mapping[str, Any]
"""A TOML table."""

CRI: Final = "io.containerd.cri.v1.runtime"
"""containerd's CRI plugin in version 3 of its configuration."""
OLD_CRI: Final = "io.containerd.grpc.v1.cri"
"""The same in version 2."""
NRI: Final = "io.containerd.nri.v1.nri"
DRIVER: Final = "580.65.06"
"""The version of the simulated driver."""


def runtime(program: str = "", systemd: bool = True) -> Table:
    """containerd's table of a runtime: runc, or that program in its place."""
    options: dict[str, Any] = {"BinaryName": program} if program else {}
    options |= {"SystemdCgroup": True} if systemd else {}
    return {"runtime_type": "io.containerd.runc.v2", **({"options": options} if options else {})}


def cri(runtimes: Table, default: str = "", **more: Any) -> Table:
    """The table of containerd's CRI plugin. more: of its other keys."""
    chosen = {"default_runtime_name": default} if default else {}
    return {**more, "containerd": {**chosen, "runtimes": runtimes}}


@dataclass(frozen=True, slots=True)
class Driver:
    """libraries: their directory. links: links beside them, to their targets. programs: the
    directory of nvidia-smi. searched: ldconfig's directories beyond its own; the cache is written
    where there are any. drm: nvidia-drm is loaded. sockets: of the driver's services."""

    libraries: str = "/usr/lib/x86_64-linux-gnu"
    links: Mapping[str, str] = field(default_factory=dict)
    programs: str = "/usr/bin"
    searched: Sequence[str] = ()
    in_container: bool = False
    """A driver container has these files below its own root, which it mounts at CONTAINER."""
    drm: bool = False
    sockets: Sequence[str] = ()


CONTAINER: Final = "/run/nvidia/driver"
READY: Final = "/run/nvidia/validations/driver-ready"
MANAGEMENT: Final = (
    "--mode=management",
    f"--driver-root={CONTAINER}",
    "--vendor=management.nvidia.com",
)
"""nvidia-ctk's options for GPU Operator's own spec."""
PERSISTENCED: Final = "/run/nvidia-persistenced/socket"
FABRICMANAGER: Final = "/run/nvidia-fabricmanager/socket"


@dataclass(frozen=True, slots=True)
class Toolkit:
    """NVIDIA's container toolkit; the programs are of the release that the agent's image has. spec:
    the CDI spec that exists when the node is up. recorded: what nvidia-ctk of another release wrote
    on such a node, in tests/nri_plugin/cdi/recorded; without it, the program here writes it with
    these options. runtime: NVIDIA's, where containerd runs it.
    """

    programs: str = "/usr/bin"
    spec: str = ""
    recorded: str = ""
    options: Sequence[str] = ()
    runtime: str = ""
    config: Table = field(default_factory=dict)
    """Of /etc/nvidia-container-runtime/config.toml."""

    @property
    def describes_gpus(self) -> bool:
        """Whether the spec is one that a share can use."""
        return bool(self.spec) and self.options != MANAGEMENT


@dataclass(frozen=True, slots=True)
class Containerd:
    """Its configuration, with which the lab runs its own containerd. imported: files that the
    configuration imports."""

    config: Table = field(default_factory=lambda: {"version": 3})
    file: str = "/etc/containerd/config.toml"
    imported: Mapping[str, Table] = field(default_factory=dict)
    root: str = "/var/lib/containerd"
    state: str = "/run/containerd"
    absent: bool = False
    """The node's runtime is CRI-O; the lab's containerd runs the pods, and is not found there."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A device plugin. socket: in the kubelet's directory of device plugins. service: its systemd
    unit; "": it is a pod. off: the words of /readyz that keep it off, where it listens."""

    socket: str
    off: str
    service: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """What makes a node ready that is not ready by itself. words: the cell of the table. because:
    words of /readyz before it. advice: words of the doctor before it."""

    words: str
    because: str
    advice: str
    config: Table = field(default_factory=dict)
    """Of containerd, which then restarts."""
    installs_containerd: bool = False


BY_HAND: Final = "nvidia.com/gpu.present=true"
"""GPU Operator and GPU feature discovery set this label; without them the operator does."""


@dataclass(frozen=True, slots=True)
class Platform:
    """name: the row's. node: what the provider's or distribution's node is, and how it is made.
    cites: where the facts are from: a repository and path, or a document."""

    name: str
    node: str
    cites: Sequence[str]
    os: Mapping[str, str]
    """Of /etc/os-release."""
    containerd: Containerd
    driver: Driver = Driver()
    toolkit: Toolkit | None = None
    label: str = BY_HAND
    """KEY or KEY=VALUE: the node's label by which the chart's pods find it."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Further files."""
    read_only: Sequence[str] = ()
    noexec: Sequence[str] = ()
    plugin: Plugin | None = None
    """The platform's own, which is kept off the node."""
    selinux: str = ""
    """The policy where SELinux is enforcing and containerd labels containers (selinux.py)."""
    no_cdi_directory: bool = False
    """/etc/cdi does not exist, and cannot be made."""
    change: Change | None = None
    """None: the node is ready without a value."""
    nri_on: str = "in /etc/containerd/config.toml, then restart containerd:"
    """Words of the doctor's advice where NRI is off."""
