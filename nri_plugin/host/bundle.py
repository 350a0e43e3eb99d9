"""Reads a created container's OCI bundle (config.json); lists capabilities that endanger limits.

The bundle is what the runtime will run: image, pod, and all NRI plugins' adjustments. A dangerous
capability lets a process remove its own limits, or the limits of processes that it sees.
Blocks: run it in a thread.
Source: containerd's bundle layout, and the OCI runtime specification (process).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from nri_plugin.host import entrypoint

_TASKS: Final = "io.containerd.runtime.v2.task/k8s.io"
_CONFIG_BYTES: Final = 16 << 20
STATES: Final = (
    Path("/run/containerd"),
    Path("/run/k3s/containerd"),
    Path("/run/k0s/containerd"),
    Path("/var/snap/microk8s/common/run/containerd"),
)
"""containerd's state directories: the default, and those of k3s and RKE2, k0s, and MicroK8s."""

_PREFIX: Final = "CAP_"
_NAMES: Final = tuple(
    f"io.kubernetes.cri.{name}" for name in ("sandbox-namespace", "sandbox-name", "container-name")
)
"""Annotations of containerd's bundles."""
_OVER_HOST: Final = "SYS_PTRACE"

LOOSENING: Final[Mapping[str, str]] = MappingProxyType(
    {
        "SYS_ADMIN": "unmount the files of its limit",
        "SYS_MODULE": "load code into the kernel",
        "SYS_RAWIO": "access the GPU without its driver",
        "DAC_READ_SEARCH": "open files by handle, also its grant for writing",
        _OVER_HOST: "access the host's files through its processes (hostPID)",
    }
)
"""Capability, without CAP_ -> what a process that has it can do against a limit. MKNOD is omitted,
because the cgroup denies access to created nodes. BPF and PERFMON are omitted, because writing
other processes' memory or detaching the cgroup's device program needs SYS_ADMIN. SYS_PTRACE counts
only where the host's processes are visible: within the pod, root can do as much without it."""


@dataclass(frozen=True, slots=True)
class Config:
    """What a bundle configures. capabilities: all that a process in the container can get, without
    CAP_. sees_others: the container shares the PID namespace of its pod, of the host or of another
    container. selinux_label: its processes' label; "": none. sources: its mounts' host paths.
    """

    process: entrypoint.Process
    capabilities: AbstractSet[str]
    sees_others: bool
    selinux_label: str
    sources: Sequence[str]


def changed_s(state: Path) -> float | None:
    """Return when a container of Kubernetes was last created or removed, in seconds. None: there
    are no such containers in the state directory. state: its path as this process sees it."""
    try:
        return (state / _TASKS).stat().st_mtime
    except OSError:
        return None


def directory(containerd_state: Path, container_id: str) -> Path:
    """Return the directory of the container's bundle. `container_id` must be a plain file name."""
    return containerd_state / _TASKS / container_id


def all_of(containerd_state: Path) -> Sequence[Path]:
    """Return the directories of all bundles. Raises OSError."""
    try:
        return sorted((containerd_state / _TASKS).iterdir())
    except FileNotFoundError:
        return ()


def init(bundle: Path) -> Path:
    """Return the /proc directory of the container's first process. Raises OSError."""
    return Path("/proc", (bundle / "init.pid").read_text().strip())


def config(bundle: Path) -> Config:
    """Read the bundle's config. Raises OSError, also for a malformed file."""
    with (bundle / "config.json").open("rb") as file:
        data = file.read(_CONFIG_BYTES + 1)
    if len(data) > _CONFIG_BYTES:
        raise OSError(f"{bundle}/config.json has more than {_CONFIG_BYTES} bytes")
    try:
        written = json.loads(data)
        process = written["process"]
        env = dict(line.partition("=")[::2] for line in process.get("env") or ())
        starts = entrypoint.Process(tuple(process.get("args") or ()), env, process["cwd"])
        capabilities = _held(process.get("capabilities") or {})
        namespaces = (written.get("linux") or {}).get("namespaces") or ()
        own = any(each["type"] == "pid" and not each.get("path") for each in namespaces)
        sources = [str(mount.get("source", "")) for mount in written.get("mounts") or ()]
        return Config(
            starts, capabilities, not own, str(process.get("selinuxLabel") or ""), sources
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OSError(f"{bundle}/config.json is not as the runtime reads it: {error!r}") from error


def names_of(containerd_state: Path, container_id: str) -> tuple[str, str, str] | None:
    """Return a container's namespace, pod and name. None: they are not known. `container_id` must
    be a plain file name."""
    try:
        with (directory(containerd_state, container_id) / "config.json").open("rb") as file:
            written = json.loads(file.read(_CONFIG_BYTES))["annotations"]
        namespace, pod, container = (str(written[name]) for name in _NAMES)
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return namespace, pod, container


def _held(sets: dict[str, Any]) -> AbstractSet[str]:
    """Return the capabilities of all sets. A setuid program can get all of the bounding set."""
    return frozenset(plain(name) for names in sets.values() for name in names or ())


def plain(name: str) -> str:
    """Convert a name of OCI (CAP_SYS_ADMIN) or Kubernetes (SYS_ADMIN) to a key of LOOSENING."""
    return name.upper().removeprefix(_PREFIX)


def loosening(capabilities: AbstractSet[str], host_pid: bool, allowed: AbstractSet[str]) -> str:
    """Return the first of the capabilities that endangers a limit and is not allowed; "": none.
    host_pid: the container sees the host's processes."""
    for name in LOOSENING:
        if name in capabilities and name not in allowed and (host_pid or name != _OVER_HOST):
            return name
    return ""
