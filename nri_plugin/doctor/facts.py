"""Facts about a node as plain values. host.py collects them; the checks evaluate them. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from nri_plugin.policy.model import Gpu, Specs
from nri_plugin.policy.nvidia import Toolkit
from nri_plugin.policy.other_plugins import Sign
from nri_plugin.settings import Settings


class Level(StrEnum):
    """Result of a check. Only a failure makes the command fail."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was found and, if it is not in order, what to do."""

    check: str
    level: Level
    found: str
    do: str = ""


Answer = tuple[Level, str, str]
"""A check's result: level, what was found, and what to do."""


def ok(found: str) -> Answer:
    return Level.OK, found, ""


def warn(found: str, do: str) -> Answer:
    return Level.WARN, found, do


def fail(found: str, do: str) -> Answer:
    return Level.FAIL, found, do


@dataclass(frozen=True, slots=True)
class Socket:
    """The runtime's NRI socket, from the file system and the kernel's list of sockets."""

    present: bool
    listening: bool
    problem: str | None = None
    """Why the path could not be inspected."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The program that listens at the socket. None: not known, and `problem` states the cause.
    config: its complete configuration including defaults, parsed from TOML."""

    name: str | None = None
    version: str | None = None
    config: Mapping[str, Any] | None = None
    config_file: str = "/etc/containerd/config.toml"
    problem: str | None = None

    def section(self, *plugins: str) -> Mapping[str, Any]:
        """Return the table of the first of these plugins that has one; empty if none has."""
        known = (self.config or {}).get("plugins", {})
        return next((known[each] for each in plugins if each in known), {})

    @property
    def nri(self) -> Mapping[str, Any]:
        return self.section("io.containerd.nri.v1.nri")

    @property
    def cri(self) -> Mapping[str, Any]:
        """Return the CRI plugin's table, of containerd 2 and later or of older versions."""
        return self.section("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")


@dataclass(frozen=True, slots=True)
class NvidiaRuntime:
    """What NVIDIA's runtime accepts, by the file; None: the file does not exist, or `problem`."""

    toolkit: Toolkit | None = None
    file: str = "/etc/nvidia-container-runtime/config.toml"
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class DevicePlugins:
    """Other device plugins that allocate GPUs, from the kubelet's directories.

    registered: device ids by resource; allocated: (pod uid, container, resource). signs: the
    programs that run now, as the agent sees them. operator: NVIDIA's GPU Operator was on the node.
    """

    registered: Mapping[str, Sequence[str]] = field(default_factory=dict)
    allocated: Sequence[tuple[str, str, str]] = ()
    sockets: Sequence[str] = ()
    problem: str | None = None
    signs: Sequence[Sign] = ()
    operator: bool = False


@dataclass(frozen=True, slots=True)
class RunDir:
    """The file system of the run directory, or of its nearest existing parent."""

    tmpfs: bool
    free_bytes: int
    free_inodes: int
    problem: str | None = None
    open_to: str = ""
    """Why users other than the agent may access it; "": they may not."""
    propagates: bool = True
    """Whether what the agent mounts there reaches the host."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """lacks: missing features of this kernel by name, with what needs them."""

    release: str
    lacks: Mapping[str, str] = field(default_factory=dict)
    host_pids: bool = True


@dataclass(frozen=True, slots=True)
class DevChar:
    """Paths of the driver's device nodes, and of those without a link in /dev/char."""

    nodes: Sequence[str] = ()
    lacking: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Agent:
    """The agent's own report. None: it does not answer, and `problem` states the cause."""

    ready: bool | None
    text: str = ""
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts. missing: by GPU, hooks of its CDI device that this host lacks."""

    settings: Settings
    root: bool
    socket: Socket
    runtime: Runtime
    library_problem: str | None
    """Why it cannot be mounted into containers; None: it can."""
    library_published: bool
    gpus: Sequence[Gpu]
    gpus_problem: str | None
    specs: Specs
    missing: Mapping[str, Sequence[str]]
    nvidia: NvidiaRuntime
    plugins: DevicePlugins
    run_dir: RunDir
    kernel: Kernel
    agent: Agent
    failed_gpus: Sequence[Gpu] = ()
    """GPUs that NVML lists and that cannot be shared."""
    driver: str = ""
    """The driver's version."""
    driver_root: str = "/"
    """The directory of the driver's files, as the host has it."""
    dev_char: DevChar = DevChar()
    selinux: bool = False
    """Whether it is enforcing."""
    apparmor: bool = False
    """Whether it is enabled."""
    platform: str = ""
    """Which one configures containerd in a way of its own (platform.py); "": none."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Directories that containerd's configuration names, and where links of the host lead them."""
    state_seen: bool = True
    """False in a pod that does not see containers of Kubernetes at containerd's state directory."""
