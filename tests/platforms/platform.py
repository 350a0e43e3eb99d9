"""How a platform's GPU node is described, as data. Each platform's file has a `Platform`.

Paths are the host's. The default of a field is that of a distribution with NVIDIA's packages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Table = Mapping[str, Any]
"""A TOML table."""

CRI: Final = "io.containerd.cri.v1.runtime"
"""The name of containerd's CRI plugin in version 3 of its configuration."""
OLD_CRI: Final = "io.containerd.grpc.v1.cri"
"""The name of the same plugin in version 2."""
NRI: Final = "io.containerd.nri.v1.nri"
DRIVER: Final = "580.65.06"
"""The version of the simulated driver."""


def runtime(program: str = "", systemd: bool = True) -> Table:
    """Return containerd's table of an OCI runtime. program: "" for runc."""
    options: dict[str, Any] = {"BinaryName": program} if program else {}
    options |= {"SystemdCgroup": True} if systemd else {}
    return {"runtime_type": "io.containerd.runc.v2", **({"options": options} if options else {})}


def cri(runtimes: Table, default: str = "", **more: Any) -> Table:
    """Return the table of containerd's CRI plugin. more: its other keys."""
    chosen = {"default_runtime_name": default} if default else {}
    return {**more, "containerd": {**chosen, "runtimes": runtimes}}


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver's files. libraries: directory of its libraries. links: links in that directory,
    with their targets. programs: directory of nvidia-smi. searched: further directories for
    ldconfig. drm: nvidia-drm is loaded. sockets: sockets of the driver's services."""

    libraries: str = "/usr/lib/x86_64-linux-gnu"
    links: Mapping[str, str] = field(default_factory=dict)
    programs: str = "/usr/bin"
    searched: Sequence[str] = ()
    in_container: bool = False
    """These files are in a driver container, which mounts its root directory at CONTAINER."""
    drm: bool = False
    sockets: Sequence[str] = ()


CONTAINER: Final = "/run/nvidia/driver"
READY: Final = "/run/nvidia/validations/driver-ready"
MANAGEMENT: Final = (
    "--mode=management",
    f"--driver-root={CONTAINER}",
    "--vendor=management.nvidia.com",
)
"""nvidia-ctk's options for the spec that GPU Operator makes for its own containers."""
PERSISTENCED: Final = "/run/nvidia-persistenced/socket"
FABRICMANAGER: Final = "/run/nvidia-fabricmanager/socket"


@dataclass(frozen=True, slots=True)
class Toolkit:
    """NVIDIA's container toolkit, of the release in the agent's image. spec: path of the CDI spec.
    recorded: the file of tests/nri_plugin/cdi/recorded that is the spec's content, or "" if the
    node's nvidia-ctk writes the spec, with `options`. runtime: path of NVIDIA's runtime, or "" if
    containerd does not run it."""

    programs: str = "/usr/bin"
    spec: str = ""
    recorded: str = ""
    options: Sequence[str] = ()
    runtime: str = ""
    config: Table = field(default_factory=dict)
    """The content of /etc/nvidia-container-runtime/config.toml."""

    @property
    def describes_gpus(self) -> bool:
        return bool(self.spec) and self.options != MANAGEMENT


@dataclass(frozen=True, slots=True)
class Containerd:
    """The configuration of the platform's and the lab's containerd. imported: files it imports."""

    config: Table = field(default_factory=lambda: {"version": 3})
    file: str = "/etc/containerd/config.toml"
    imported: Mapping[str, Table] = field(default_factory=dict)
    root: str = "/var/lib/containerd"
    state: str = "/run/containerd"
    absent: bool = False
    """The runtime is CRI-O. The agent does not find the lab's containerd, which runs the pods."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A device plugin. socket: its socket in the kubelet's directory. service: its systemd unit, or
    "" if it runs in a pod. off: the advice in /readyz how to turn the plugin off."""

    socket: str
    off: str
    service: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """A change that makes the node ready. words: its description in the document's table. because:
    part of the text of /readyz before the change. advice: part of the doctor's text before it."""

    words: str
    because: str
    advice: str
    config: Table = field(default_factory=dict)
    """Changes to containerd's configuration, after which containerd restarts."""
    installs_containerd: bool = False


BY_HAND: Final = "nvidia.com/gpu.present=true"
"""GPU Operator or GPU feature discovery sets this label. Without them the administrator sets it."""


@dataclass(frozen=True, slots=True)
class Platform:
    """name: the title of the row. node: what the provider's or distribution's node is, and how it
    is made. cites: the sources of the facts, each a repository and path, or a document."""

    name: str
    node: str
    cites: Sequence[str]
    os: Mapping[str, str]
    """The fields of /etc/os-release."""
    containerd: Containerd
    driver: Driver = Driver()
    toolkit: Toolkit | None = None
    label: str = BY_HAND
    """The node label by which the chart's pods find the node, as KEY or KEY=VALUE."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Further files, by path."""
    read_only: Sequence[str] = ()
    noexec: Sequence[str] = ()
    plugin: Plugin | None = None
    """The platform's own device plugin, which the administrator keeps off the node."""
    selinux: str = ""
    """The SELinux policy that is enforced, where containerd labels containers (selinux.py)."""
    no_cdi_directory: bool = False
    """/etc/cdi does not exist, and cannot be made."""
    change: Change | None = None
    """What an administrator must change, or None if the node is ready without a change."""
    nri_on: str = "in /etc/containerd/config.toml, then restart containerd:"
    """Words of the doctor's advice while NRI is off."""
