"""Who else on this node could bring a card: NVIDIA's runtime, other device plugins, DRA drivers.

Reads the toolkit's configuration and the kubelet's directories; the kubelet's checkpoint lists what
device plugins offer and what it has given away.
"""

from __future__ import annotations

import json
import stat
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nri_plugin.doctor.facts import DevicePlugins, NvidiaRuntime

_CHECKPOINT: Final = "device-plugins/kubelet_internal_checkpoint"
_KUBELETS_OWN: Final = "kubelet.sock"


def look_at_nvidia(root: Path, file: Path) -> NvidiaRuntime:
    """root: the host's, as it is seen here."""
    try:
        return NvidiaRuntime(tomllib.loads(_under(root, file).read_text()), str(file))
    except FileNotFoundError:
        return NvidiaRuntime(None, str(file))
    except (OSError, ValueError) as error:
        return NvidiaRuntime(None, str(file), f"{file}: {error}")


def look_at_device_plugins(root: Path, directory: Path) -> DevicePlugins:
    """root: the host's, as it is seen here; directory: the kubelet's."""
    kubelet = _under(root, directory)
    if not (kubelet / "device-plugins").is_dir():
        return DevicePlugins(problem=f"{directory}/device-plugins is not there, or not seen")
    sockets = [
        str(path.relative_to(kubelet))
        for folder in ("device-plugins", "plugins_registry")
        for path in _sockets(kubelet / folder)
    ]
    file = kubelet / _CHECKPOINT
    try:
        data = json.loads(file.read_text())["Data"]
        return DevicePlugins(
            {str(name): _ids(listed) for name, listed in _table(data, "RegisteredDevices").items()},
            [_entry(each) for each in data.get("PodDeviceEntries") or ()],
            sockets,
        )
    except FileNotFoundError:
        return DevicePlugins(sockets=sockets)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return DevicePlugins(sockets=sockets, problem=f"{file}: {error!r}")


def _under(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")


def _table(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return data.get(name) or {}


def _ids(listed: Sequence[object] | None) -> Sequence[str]:
    return [str(each) for each in listed or ()]


def _entry(raw: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(raw["PodUID"]), str(raw["ContainerName"]), str(raw["ResourceName"])


def _sockets(directory: Path) -> Sequence[Path]:
    """Plugins' sockets; the kubelet's own is none."""
    try:
        return [
            path
            for path in sorted(directory.iterdir())
            if path.name != _KUBELETS_OWN and stat.S_ISSOCK(path.lstat().st_mode)
        ]
    except OSError:
        return ()
