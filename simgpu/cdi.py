"""The GPUs as a CDI spec: the edits by which a container runtime adds a GPU to a container.

Paths in, a JSON document out. Each device is one GPU, named by its UUID. It adds only that GPU's
device node and socket. As with NVIDIA's container toolkit, any GPU also adds the control device
nodes, driver libraries and nvidia-smi, which are never part of an image.
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

# A process can connect through a read-only mount, because only the socket's mode decides. The
# read-only mount prevents the container's root from changing that mode for other users.
_SOCKET_OPTIONS: Final = ("bind", "ro", "nosuid", "nodev", "noexec")
_FILE_OPTIONS: Final = ("bind", "ro", "nosuid", "nodev")


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver's files on the host, as paths without symlinks."""

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
    """Return the directory that Debian's dynamic loader searches even if its cache of library names
    is missing."""
    name = multiarch or sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu"
    return PurePosixPath("/usr/lib") / str(name)


def spec(
    gpus: Sequence[GpuConfig],
    sockets: Mapping[int, Path],
    driver: Driver,
    nodes: Path | None = None,
) -> dict[str, Any]:
    """Return the CDI spec. sockets: by the GPU's minor. nodes: the directory of device nodes."""
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
