"""A simulated host: the lab's mount namespace with the files that a GPU node's operator finds.

What is written below its system directories ends with the lab. The simulated driver is installed as
a distribution's package would be, with device nodes and a CDI spec. A link to each GPU's socket is
among the firmware files, which NVIDIA's toolkit mounts into every container.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.node import containerd, containerd_config
from lab.node.containerd import Paths
from lab.node.containerd_config import Options
from lab.node.namespace import Namespace
from simgpu import device_nodes
from simgpu.cdi import library_dir
from simgpu.config import HostConfig
from simgpu.state_dir import StateDir
from tools.images.nvidia_ctk import NVIDIA_CDI_HOOK, NVIDIA_CONTAINER_RUNTIME, NVIDIA_CTK

COVERED: Final = ("/etc", "/opt", "/run", "/usr", "/var")
CONTAINERD_ROOT: Final = Path("/var/lib/containerd")
_LIBRARIES: Final = ("libcuda.so", "libnvidia-ml.so")
_FIRMWARE: Final = Path("/usr/lib/firmware/nvidia")
_BELOW_DEV: Final = ("pts", "shm", "mqueue")
RUNTIME: Final = Path("/usr/bin/nvidia-container-runtime")
RUNTIME_CONFIG: Final = Path("/etc/nvidia-container-runtime/config.toml")

# GPU Operator installs such a script, too. The simulated driver reads SIMGPU_DIR.
_WRAPPER: Final = """\
#!/bin/sh
SIMGPU_DIR={sim_dir} exec {program}.real "$@"
"""


def make(
    namespace: Namespace, build: Path, sim_dir: Path, simulated: HostConfig, programs: Path
) -> None:
    """Install the host's files. build: the simulated driver's build directory. programs: the
    directory of containerd's programs. Raises NamespaceError."""
    for place in map(Path, COVERED):
        namespace.cover(place)
    install_driver(namespace, build, sim_dir, simulated)
    root = namespace.directory / "root" / "containerd"
    for made, place in ((root, CONTAINERD_ROOT), (sim_dir / "cdi", Path("/run/cdi"))):
        made.mkdir(parents=True, exist_ok=True)
        namespace.outside(place).mkdir(parents=True, exist_ok=True)
        # containerd's snapshots are overlays, whose upper layer cannot be on an overlay.
        namespace.mount("--bind", made, place)
    for program in programs.iterdir():
        installed = namespace.outside(Path("/usr/bin", program.name))
        installed.unlink(missing_ok=True)
        installed.symlink_to(program)
    # systemd also shares mounts at boot, because containerd must see the mounts of agents in pods.
    namespace.mount("--make-rshared", "/")


@dataclass(frozen=True, slots=True)
class Host:
    """A kind of simulated host. make: installs its files and mounts before containerd starts.
    paths: returns containerd's paths. config: returns containerd's configuration."""

    make: Callable[[Namespace, Path, Path, HostConfig, Path], None] = make
    paths: Callable[[Path], Paths] = containerd.standard
    config: Callable[[Options], str] = containerd_config.of_host


STANDARD: Final = Host()


def install_driver(namespace: Namespace, build: Path, sim_dir: Path, simulated: HostConfig) -> None:
    """Write the files of a driver's package: libraries with the version in the name, and links."""
    version = simulated.driver_version
    libraries = namespace.outside(Path(library_dir()))
    for name in _LIBRARIES:
        shutil.copy(build / "lib" / "simgpu" / f"{name}.1", libraries / f"{name}.{version}")
        (libraries / f"{name}.1").symlink_to(f"{name}.{version}")
    shutil.copy(build / "bin" / "nvidia-smi", namespace.outside(Path("/usr/bin/nvidia-smi")))
    firmware = namespace.outside(_FIRMWARE / version)
    firmware.mkdir(parents=True)
    state_dir = StateDir.at(sim_dir)
    for gpu in simulated.gpus:
        # The link is relative, because a pod sees the host's root at another path.
        socket = os.path.relpath(state_dir.gpu_socket(gpu.minor), _FIRMWARE / version)
        (firmware / f"gsp_simgpu{gpu.minor}.bin").symlink_to(socket)
    _cover_dev(namespace)
    device_nodes.make(namespace.outside(Path("/dev")), [gpu.minor for gpu in simulated.gpus])


def _cover_dev(namespace: Namespace) -> None:
    """Make later device nodes visible in the lab only. Keep what is mounted below /dev."""
    kept = namespace.directory / "root" / "dev"
    below = [name for name in _BELOW_DEV if Path("/dev", name).is_mount()]
    for name in below:
        (kept / name).mkdir(parents=True)
        namespace.mount("--bind", Path("/dev", name), kept / name)
    namespace.cover(Path("/dev"))
    for name in below:
        namespace.mount("--move", kept / name, Path("/dev", name))


def install_nvidia_runtime(namespace: Namespace, sim_dir: Path, config: str = "") -> None:
    """Install NVIDIA's container runtime, with NVIDIA's own programs, as the toolkit's package
    does. The runtime gets its GPUs from the simulated driver. containerd uses it for all containers
    without a RuntimeClass if Options.default_runtime names its handler.

    config: the toolkit's whole file; "" has its defaults. Raises NamespaceError.
    """
    for program in (NVIDIA_CDI_HOOK, NVIDIA_CTK):
        shutil.copy(program.ensure(), namespace.outside(Path("/usr/bin", program.name)))
    real = RUNTIME.with_suffix(".real")
    shutil.copy(NVIDIA_CONTAINER_RUNTIME.ensure(), namespace.outside(real))
    namespace.write(RUNTIME, _WRAPPER.format(sim_dir=sim_dir, program=RUNTIME), 0o755)
    namespace.write(RUNTIME_CONFIG, config)
