"""Device plugins in the kubelet's directory: their sockets, and the kubelet's record.

The record (`kubelet_internal_checkpoint`) lists what each container was assigned. The kubelet
writes it at each assignment, before it starts the container, and reads it at its own start; it
does not write it when a pod ends. Blocks: run it in a thread.
Source: k8s.io/kubernetes/pkg/kubelet/cm/devicemanager (manager.go, checkpoint/), NVIDIA's
k8s-device-plugin (its socket is `nvidia-`, the resource's name and `.sock`).
"""

from __future__ import annotations

import json
import socket
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

RECORD: Final = "kubelet_internal_checkpoint"
KUBELETS_OWN: Final = "kubelet.sock"
_NVIDIAS: Final = "nvidia"
_CONNECT_S: Final = 0.2


class RecordError(Exception):
    """The kubelet's record cannot be read."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One container's devices of one resource; its pod may be gone."""

    pod_uid: str
    container: str
    resource: str
    ids: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """registered: IDs of healthy devices, by resource."""

    registered: Mapping[str, Sequence[str]] = field(default_factory=dict)
    entries: Sequence[Entry] = ()


def read_record(directory: Path) -> Record:
    """Return the record; an empty one if the kubelet has written none. Raises RecordError."""
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


def _ids(listed: Sequence[object] | None) -> Sequence[str]:
    return [str(each) for each in listed or ()]


def _entry(raw: Mapping[str, Any]) -> Entry:
    """IDs are listed by NUMA node, "-1" if the device has none."""
    by_numa = raw.get("DeviceIDs") or {}
    ids = [each for listed in by_numa.values() for each in _ids(listed)]
    return Entry(
        str(raw["PodUID"]), str(raw["ContainerName"]), str(raw["ResourceName"]), sorted({*ids})
    )


def sockets(directory: Path) -> Sequence[Path]:
    """Return the plugins' sockets, without the kubelet's own."""
    try:
        return [
            path
            for path in sorted(directory.iterdir())
            if path.name != KUBELETS_OWN and stat.S_ISSOCK(path.lstat().st_mode)
        ]
    except OSError:
        return ()


def sign_of_nvidias(directory: Path) -> str:
    """Return the socket on which a device plugin of NVIDIA listens; "": none."""
    for path in sockets(directory):
        if path.name.startswith(_NVIDIAS) and _listens(path):
            return f"a device plugin listens on {path}"
    return ""


def _listens(path: Path) -> bool:
    """A plugin that was killed leaves its socket behind."""
    with socket.socket(socket.AF_UNIX) as trying:
        trying.settimeout(_CONNECT_S)
        try:
            trying.connect(str(path))
        except OSError:
            return False
        return True
