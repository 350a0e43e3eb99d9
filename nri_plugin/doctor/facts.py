"""What was found on a node, as plain values; made by host.py, judged by the checks. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from nri_plugin.model import Gpu, Specs
from nri_plugin.settings import Settings


class Level(StrEnum):
    """How a check ended. Only a failure makes the command fail."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was found, and where it is not well, what to do."""

    check: str
    level: Level
    found: str
    do: str = ""


Answer = tuple[Level, str, str]
"""A check's: level, what was found, and what to do."""


def ok(found: str) -> Answer:
    return Level.OK, found, ""


def warn(found: str, do: str) -> Answer:
    return Level.WARN, found, do


def fail(found: str, do: str) -> Answer:
    return Level.FAIL, found, do


@dataclass(frozen=True, slots=True)
class Socket:
    """The runtime's NRI socket, as the file system and the kernel's list of sockets have it."""

    present: bool
    listening: bool
    problem: str | None = None
    """Why the path could not be looked at."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """Who listens at the socket. None: not known, and `problem` says why.

    config: its whole configuration, defaults included, as TOML gives it.
    """

    name: str | None = None
    version: str | None = None
    config: Mapping[str, Any] | None = None
    config_file: str = "/etc/containerd/config.toml"
    problem: str | None = None

    def section(self, *plugins: str) -> Mapping[str, Any]:
        """The first of these plugins' tables that is there; empty where none is."""
        known = (self.config or {}).get("plugins", {})
        return next((known[each] for each in plugins if each in known), {})

    @property
    def nri(self) -> Mapping[str, Any]:
        return self.section("io.containerd.nri.v1.nri")

    @property
    def cri(self) -> Mapping[str, Any]:
        """containerd 2 and later, and before."""
        return self.section("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")


@dataclass(frozen=True, slots=True)
class Library:
    """problem: why it cannot be mounted into containers; None: it can."""

    problem: str | None = None
    published: bool = False
    store_noexec: bool = False


@dataclass(frozen=True, slots=True)
class NvidiaRuntime:
    """config.toml of NVIDIA's container toolkit; None: it is not there."""

    config: Mapping[str, Any] | None = None
    file: str = "/etc/nvidia-container-runtime/config.toml"
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class DevicePlugins:
    """Who else hands out GPUs, by the kubelet's directories.

    registered: device ids by resource; allocated: (pod uid, container, resource).
    """

    registered: Mapping[str, Sequence[str]] = field(default_factory=dict)
    allocated: Sequence[tuple[str, str, str]] = ()
    sockets: Sequence[str] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class RunDir:
    """The run directory's file system, or that of the nearest directory above it."""

    tmpfs: bool
    free_bytes: int
    free_inodes: int
    problem: str | None = None
    open_to: str = ""
    """Why others than the agent may reach what is in it; "": they may not."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """lacks: features that this kernel does not offer, by name, with what needs them."""

    release: str
    lacks: Mapping[str, str] = field(default_factory=dict)
    host_pids: bool = True


@dataclass(frozen=True, slots=True)
class Agent:
    """What the agent says of itself. None: it does not answer, and `problem` says how."""

    ready: bool | None
    text: str = ""
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """The whole look. missing: by GPU, files that its CDI device names and this host lacks."""

    settings: Settings
    root: bool
    socket: Socket
    runtime: Runtime
    library: Library
    gpus: Sequence[Gpu]
    gpus_problem: str | None
    specs: Specs
    missing: Mapping[str, Sequence[str]]
    nvidia: NvidiaRuntime
    plugins: DevicePlugins
    run_dir: RunDir
    kernel: Kernel
    agent: Agent
    in_trouble: Sequence[Gpu] = ()
    """GPUs that NVML shows and that cannot be shared."""
