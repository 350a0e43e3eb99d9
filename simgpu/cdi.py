"""The GPUs as a CDI spec: what a container runtime adds so that one GPU appears in a container.

Law: pure; paths come in, a JSON document goes out. A device is one GPU, named by its UUID, and
brings that GPU's socket alone. The driver's libraries and nvidia-smi come with any GPU, as the
NVIDIA container toolkit brings them from the host, and are never part of an image.
"""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from simgpu.config import GpuConfig

KIND: Final = "nvidia.com/gpu"
_VERSION: Final = "0.6.0"
GPU_DIR: Final = PurePosixPath("/dev/simgpu")

# A mount that is read-only still lets a process connect to a socket, which is a matter of the
# inode's mode; it keeps root inside from changing that mode under everybody else.
_SOCKET_OPTIONS: Final = ("bind", "ro", "nosuid", "nodev", "noexec")
_FILE_OPTIONS: Final = ("bind", "ro", "nosuid", "nodev")


@dataclass(frozen=True, slots=True)
class Driver:
    """The files of the driver on the host, without a symlink on the way to any of them."""

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
    """Where the dynamic loader of Debian's family looks without a cache of names."""
    name = multiarch or sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu"
    return PurePosixPath("/usr/lib") / str(name)


def spec(gpus: Sequence[GpuConfig], sockets: Mapping[int, Path], driver: Driver) -> dict[str, Any]:
    """`sockets` is by minor."""
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
                    "mounts": [
                        _mount(sockets[gpu.minor], GPU_DIR / f"{gpu.minor}.sock", _SOCKET_OPTIONS)
                    ]
                },
            }
            for gpu in gpus
        ],
        "containerEdits": {
            "mounts": [_mount(host, inside, _FILE_OPTIONS) for host, inside in files.items()]
        },
    }


def render(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"


def _mount(host: Path, container: PurePosixPath, options: Sequence[str]) -> dict[str, Any]:
    return {"hostPath": str(host), "containerPath": str(container), "options": list(options)}
