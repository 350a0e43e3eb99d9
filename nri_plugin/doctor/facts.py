"""Facts about a node as plain values, which host.py collects and the checks evaluate. No I/O."""

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
    """Result of a check. Only FAIL makes the command's exit status 1."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of output: what a check found and, unless the result is ok, what to do."""

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
    """Why the socket's path could not be inspected."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The runtime, which listens at the socket. An unknown value is None; `problem` states why.
    config: the complete configuration, parsed from TOML, with defaults."""

    name: str | None = None
    version: str | None = None
    config: Mapping[str, Any] | None = None
    config_file: str = "/etc/containerd/config.toml"
    problem: str | None = None

    def section(self, *plugins: str) -> Mapping[str, Any]:
        """Return the table of the first of these containerd plugins that is configured; else {}."""
        known = (self.config or {}).get("plugins", {})
        return next((known[each] for each in plugins if each in known), {})

    @property
    def nri(self) -> Mapping[str, Any]:
        return self.section("io.containerd.nri.v1.nri")

    @property
    def cri(self) -> Mapping[str, Any]:
        """Return the CRI plugin's table. The plugin has another name before containerd 2."""
        return self.section("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")


@dataclass(frozen=True, slots=True)
class NvidiaRuntime:
    """NVIDIA's runtime, from its configuration `file`. toolkit: None if it cannot be read."""

    toolkit: Toolkit | None = None
    file: str = "/etc/nvidia-container-runtime/config.toml"
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class DevicePlugins:
    """Other device plugins that allocate GPUs, from the kubelet's directories.

    registered: device ids by resource. allocated: (pod uid, container, resource). signs: evidence
    of running programs (host/device_plugins.py). operator: GPU Operator has files on the node.
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
    """Why users other than the agent's may access the run directory; "": they may not."""
    propagates: bool = True
    """Whether a mount that the agent makes in the run directory reaches the host."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The kernel. lacks: missing feature -> what needs the feature. host_pids: whether this process
    is in the host's PID namespace."""

    release: str
    lacks: Mapping[str, str] = field(default_factory=dict)
    host_pids: bool = True


@dataclass(frozen=True, slots=True)
class DevChar:
    """The driver's device nodes, by path. lacking: those without a link in /dev/char."""

    nodes: Sequence[str] = ()
    lacking: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Agent:
    """The agent's answer at /readyz. ready: None if it does not answer; see `problem`."""

    ready: bool | None
    text: str = ""
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts. missing: GPU UUID -> programs that its CDI hooks need and the host lacks."""

    settings: Settings
    root: bool
    socket: Socket
    runtime: Runtime
    library_problem: str | None
    """Why the library cannot be mounted into containers; None: it can."""
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
    """GPUs that NVML lists but that cannot be shared."""
    driver: str = ""
    without_driver_limits: str = ""
    """Why the driver cannot limit the containers' memory; "": it can."""
    driver_root: str = "/"
    """The host's path of the directory of the driver's files."""
    dev_char: DevChar = DevChar()
    selinux: bool = False
    apparmor: bool = False
    platform: str = ""
    """The node's platform, if it configures containerd in its own way (platform.py); else ""."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Directories that containerd's configuration names -> their paths with all links resolved."""
    state_seen: bool = True
    """False in a pod that sees no containers of Kubernetes in containerd's state directory."""
