"""The GPUs as a CDI spec: the edits by which a container runtime adds a GPU to a container.

Paths in, a JSON document out. A device is one GPU, named by its UUID, and adds that GPU's device
node and socket alone. The driver's control nodes, its libraries and nvidia-smi are added with any
GPU, as by the NVIDIA container toolkit, from the host; they are never part of an image.
"""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from simgpu import device_nodes
from simgpu.config import GpuConfig

KIND: Final = "nvidia.com/gpu"
_VERSION: Final = "0.6.0"
GPU_DIR: Final = PurePosixPath("/dev/simgpu")

# A process can connect to a socket through a read-only mount, because the inode's mode decides; the
# mount keeps root in the container from changing that mode for all other users.
_SOCKET_OPTIONS: Final = ("bind", "ro", "nosuid", "nodev", "noexec")
_FILE_OPTIONS: Final = ("bind", "ro", "nosuid", "nodev")


@dataclass(frozen=True, slots=True)
class Driver:
    """The files of the driver on the host, without a symlink on their paths."""

    libcuda: Path
    libnvidia_ml: Path
    nvidia_smi: Path

    @property
    def missing(self) -> tuple[Path, ...]:
        files = (self.libcuda, self.libnvidia_ml, self.nvidia_smi)
        return tuple(path for path in files if not path.is_file())

    def __post_init__(self) -> None:
        for field in ("libcuda", "libnvidia_ml", "nvidia_smi"):
            object.__setattr__(self, field, getattr(self, field).resolve())


def library_dir(multiarch: str | None = None) -> PurePosixPath:
    """Return the directory in which the dynamic loader of Debian and its derivatives searches
    without a cache of names."""
    name = multiarch or sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu"
    return PurePosixPath("/usr/lib") / str(name)


def spec(
    gpus: Sequence[GpuConfig],
    sockets: Mapping[int, Path],
    driver: Driver,
    nodes: Path | None = None,
) -> dict[str, Any]:
    """`sockets` is by minor. nodes: directory of the device nodes; None: there are none."""
    libraries = library_dir()
    files = {
        driver.libcuda: libraries / "libcuda.so.1",
        driver.libnvidia_ml: libraries / "libnvidia-ml.so.1",
        driver.nvidia_smi: PurePosixPath("/usr/bin/nvidia-smi"),
    }
    return {
        "cdiVersion": _VERSION,
        "kind": KIND,
        "devices": [
            {
                "name": gpu.uuid,
                "containerEdits": {
                    **_nodes(nodes, [device_nodes.name(gpu.minor)]),
                    "mounts": [
                        _mount(sockets[gpu.minor], GPU_DIR / f"{gpu.minor}.sock", _SOCKET_OPTIONS)
                    ],
                },
            }
            for gpu in gpus
        ],
        "containerEdits": {
            **_nodes(nodes, device_nodes.CONTROL),
            "mounts": [_mount(host, inside, _FILE_OPTIONS) for host, inside in files.items()],
        },
    }


def render(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"


def _nodes(directory: Path | None, names: Iterable[str]) -> dict[str, Any]:
    if directory is None:
        return {}
    return {
        "deviceNodes": [
            {"path": f"/dev/{name}", "hostPath": str(directory / name)} for name in names
        ]
    }


def _mount(host: Path, container: PurePosixPath, options: Sequence[str]) -> dict[str, Any]:
    return {"hostPath": str(host), "containerPath": str(container), "options": list(options)}
