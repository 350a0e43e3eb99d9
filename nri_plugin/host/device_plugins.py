"""Finds other programs that allocate GPUs, by their sockets and files; reads the kubelet's record.

A node image may run such a program outside of a pod: then the cgroup of the listening process names
a systemd unit. A DRA driver also leaves a CDI spec for each claim that it has prepared. The record
lists the devices that each container was assigned. The kubelet writes the record before it starts a
container, and does not update it when a pod ends. Blocks: run it in a thread.
Source: k8s.io/kubernetes/pkg/kubelet/cm/devicemanager, NVIDIA's k8s-device-plugin (its socket is
`nvidia-`, the resource's name and `.sock`), Google's (`nvidiaGPU-` and a time; its IDs name a GPU
by its device node), NVIDIA's DRA driver (cmd/gpu-kubelet-plugin/cdi.go).
"""

from __future__ import annotations

import json
import re
import socket
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final

from nri_plugin.host.descriptors import version
from nri_plugin.policy.other_plugins import Sign

RECORD: Final = "kubelet_internal_checkpoint"
KUBELETS_OWN: Final = "kubelet.sock"
DRA_DRIVER: Final = "gpu.nvidia.com"
"""NVIDIA's DRA driver for GPUs. Its other driver, compute-domain.nvidia.com, allocates no GPU."""
_CLAIM: Final = f"k8s.{DRA_DRIVER}-claim_"
_REGISTRY: Final = "plugins_registry"
_NVIDIAS: Final = "nvidia"
_GKES: Final = "nvidiaGPU-"
_CONNECT_S: Final = 0.2
_CREDENTIALS: Final = struct.Struct("3i")
_UNIT: Final = re.compile(r"/([^/\n]+\.service)$", re.MULTILINE)
_UUID: Final = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class RecordError(Exception):
    """The kubelet's record cannot be read."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One container's devices of one resource. The pod may have ended."""

    pod_uid: str
    container: str
    resource: str
    ids: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """The kubelet's record. registered: IDs of healthy devices, by resource."""

    registered: Mapping[str, Sequence[str]] = field(default_factory=dict)
    entries: Sequence[Entry] = ()


def read_record(directory: Path) -> Record:
    """Return the record; an empty one if there is no file. Raises RecordError."""
    file = directory / RECORD
    try:
        data = json.loads(file.read_text())["Data"]
        registered = data.get("RegisteredDevices") or {}
        return Record(
            {str(name): _ids(listed) for name, listed in registered.items()},
            [_entry(each) for each in data.get("PodDeviceEntries") or ()],
        )
    except FileNotFoundError:
        return Record()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{file}: {error!r}") from error


class Assignments:
    """The pods to which the kubelet has assigned whole GPUs, whatever plugin offers them. The
    kubelet's record is read again whenever it has changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = str(directory / RECORD)
        self._read: object = None
        self._pods: Mapping[str, AbstractSet[str]] = {}

    def pods(self, uuid: str, minor: int) -> AbstractSet[str]:
        """Return the UIDs of the GPU's pods. Some may have ended. Raises RecordError."""
        now = version(self._file)
        if now is None or now != self._read:
            self._pods = holders(read_record(self._directory))
            self._read = now
        none: AbstractSet[str] = frozenset()
        return self._pods.get(uuid, none) | self._pods.get(f"nvidia{minor}", none)


def holders(record: Record) -> Mapping[str, AbstractSet[str]]:
    """Return the UIDs of pods by GPU. The key is the GPU's UUID, or the name (nvidia0) in IDs of
    Google's plugin. IDs of a GPU's replicas contain the GPU's key."""
    uids: dict[str, set[str]] = {}
    for entry in record.entries:
        for each in entry.ids:
            match = _UUID.search(each)
            gpu = match[0] if match else re.split("::|/", each)[0]
            uids.setdefault(gpu, set()).add(entry.pod_uid)
    return uids


def _ids(listed: Sequence[object] | None) -> Sequence[str]:
    return [str(each) for each in listed or ()]


def _entry(raw: Mapping[str, Any]) -> Entry:
    """Convert an entry of the record. The kubelet lists a container's IDs by NUMA node ("-1":
    unknown)."""
    by_numa = raw.get("DeviceIDs") or {}
    ids = [each for listed in by_numa.values() for each in _ids(listed)]
    return Entry(
        str(raw["PodUID"]), str(raw["ContainerName"]), str(raw["ResourceName"]), sorted({*ids})
    )


def sockets(directory: Path) -> Sequence[Path]:
    """Return the sockets in the directory, except the kubelet's own."""
    try:
        return [
            path
            for path in sorted(directory.iterdir())
            if path.name != KUBELETS_OWN and stat.S_ISSOCK(path.lstat().st_mode)
        ]
    except OSError:
        return ()


def plugin_sign(directory: Path) -> Sign | None:
    """Return the sign that a device plugin for NVIDIA's GPUs runs; None: none was found."""
    paths = (path for path in sockets(directory) if path.name.startswith(_NVIDIAS))
    signs = (_listener(p, "a device plugin", is_gke=p.name.startswith(_GKES)) for p in paths)
    return next(filter(None, signs), None)


def dra_sign(kubelet_dir: Path, cdi_dirs: Iterable[Path]) -> Sign | None:
    """Return the sign that NVIDIA's DRA driver runs or has run; None: none was found."""
    registered = (p for p in sockets(kubelet_dir / _REGISTRY) if p.name.startswith(DRA_DRIVER))
    paths = chain(registered, sockets(kubelet_dir / "plugins" / DRA_DRIVER))
    listeners = (_listener(path, "NVIDIA's DRA driver", is_dra=True) for path in paths)
    prepared = "NVIDIA's DRA driver has prepared the claim of"
    claims = (Sign(f"{prepared} {claim}", is_dra=True) for claim in _claims(cdi_dirs))
    return next(filter(None, chain(listeners, claims)), None)


def _claims(cdi_dirs: Iterable[Path]) -> Iterator[Path]:
    for directory in cdi_dirs:
        try:
            paths = sorted(directory.iterdir())
        except OSError:
            continue
        yield from (path for path in paths if path.name.startswith(_CLAIM))


def _listener(path: Path, what: str, is_dra: bool = False, is_gke: bool = False) -> Sign | None:
    """Return the sign of the process that listens at the socket; None: no process listens. A killed
    program leaves its socket behind."""
    with socket.socket(socket.AF_UNIX) as trying:
        trying.settimeout(_CONNECT_S)
        try:
            trying.connect(str(path))
            credentials = trying.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
            )
        except OSError:
            return None
    pid, _, _ = _CREDENTIALS.unpack(credentials)
    service = unit(pid)
    of = f", the host's {service}" if service else ""
    return Sign(f"{what} listens on {path}{of}", is_dra, service, is_gke)


def unit(pid: int, proc: Path = Path("/proc")) -> str:
    """Return the systemd unit of the host's process; "" if it has none, or is not visible."""
    try:
        match = _UNIT.search((proc / str(pid) / "cgroup").read_text())
    except OSError:
        return ""
    return match[1] if match else ""
