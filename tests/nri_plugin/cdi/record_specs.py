"""`python -m tests.nri_plugin.cdi.record_specs` records what NVIDIA's nvidia-ctk writes.

It builds each version of nvidia-ctk once, from the Go module proxy, into the cache. It runs
nvidia-ctk as root on trees of platforms over simgpu's NVML, and replaces each file in `recorded/`,
LAYOUT-VERSION.json, by the output. test_recorded_specs.py says what the agent makes of each file.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.node.lab import BUILD
from lab.node.namespace import Namespace
from nri_plugin.host.cdi_generator import OPTIONS
from simgpu import config, device_nodes
from tests.nri_plugin.host_files import put
from tools.images.nvidia_ctk import NVIDIA_CTK

RECORDED: Final = Path(__file__).parent / "recorded"
_VERSION: Final = "580.65.06"
_DEBIAN: Final = "usr/lib/x86_64-linux-gnu"
_LIBRARIES: Final = (
    *("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler", "libnvidia-nvvm", "libcudadebugger"),
    *("libnvidia-encode", "libnvcuvid", "libEGL_nvidia", "libGLX_nvidia", "libnvidia-glcore"),
)
_PROGRAMS: Final = ("smi", "debugdump", "persistenced", "cuda-mps-control", "cuda-mps-server")
_OTHERS: Final = (
    *("etc/vulkan/icd.d/nvidia_icd.json", "usr/share/glvnd/egl_vendor.d/10_nvidia.json"),
    f"lib/firmware/nvidia/{_VERSION}/gsp_ga10x.bin",
)
_SOCKETS: Final = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket")
_BY_UUID: Final = ("--mode=nvml", "--device-name-strategy=uuid")
_DRM: Final = (("card", 0, 44), ("renderD", 128, 105))
"""DRM nodes of each kind: the name, the first minor number and the group."""
_COVERED: Final = ("/etc", "/run", "/usr", "/var")


@dataclass(frozen=True, slots=True)
class Layout:
    """libraries, programs: directories below the driver root. searched: whether ldconfig searches
    `libraries`. root: the driver root on the host. in_pod: whether nvidia-ctk runs as in the
    agent's pod, with the driver root at MOUNT. Otherwise it runs as a systemd unit of the host.
    options: those of the unit's command, none in NVIDIA's. drm: whether nvidia-drm is loaded."""

    libraries: str = _DEBIAN
    programs: str = "usr/bin"
    searched: bool = False
    root: str = "/"
    in_pod: bool = False
    options: Sequence[str] = ()
    gpus: int = 1
    drm: bool = False
    uvm: bool = True
    sockets: Sequence[str] = _SOCKETS


MOUNT: Final = "/driver-root"
"""Where the agent's pod sees the driver root."""
LAYOUTS: Final = {
    "package": Layout(drm=True),
    "package-8": Layout(gpus=8, drm=True),
    "aks": Layout(),
    "eks": Layout("usr/lib64", sockets=_SOCKETS[:1]),
    "bottlerocket": Layout("usr/lib", searched=True, options=_BY_UUID, sockets=_SOCKETS[:1]),
    "talos": Layout(
        "usr/local/lib", "usr/local/bin", searched=True, drm=True, sockets=_SOCKETS[:1]
    ),
    "no-uvm": Layout(uvm=False, sockets=()),
    "pod": Layout(in_pod=True, drm=True),
    "driver-container": Layout(root="/run/nvidia/driver", in_pod=True),
    "gke": Layout("lib64", root="/home/kubernetes/bin/nvidia", in_pod=True, sockets=()),
}


def _install(layout: Layout, namespace: Namespace, root: Path, gpus: Sequence[int]) -> None:
    libraries = root / layout.libraries
    libraries.mkdir(parents=True, exist_ok=True)
    for name in _LIBRARIES:
        file = libraries / f"{name}.so.{_VERSION}"
        real = BUILD / "lib/simgpu" / f"{name}.so.1"
        shutil.copy(real, file) if real.exists() else file.touch()
        (libraries / f"{name}.so.1").symlink_to(file.name)
    for place in (*_OTHERS, *layout.sockets):
        in_usr = place.startswith("lib/") and not layout.in_pod
        put(root / "usr" / place if in_usr else root / place)
    for name in _PROGRAMS:
        put(root / layout.programs / f"nvidia-{name}", "#!/bin/sh\n").chmod(0o755)
    if layout.searched:
        namespace.write(Path("/etc/ld.so.conf.d/nvidia.conf"), f"/{layout.libraries}\n")
        namespace.run(["ldconfig"])
    dev = namespace.outside(Path("/dev"))
    device_nodes.make(dev, gpus)
    if not layout.uvm:
        (dev / "nvidia-uvm").unlink()


def _drm(namespace: Namespace, buses: Sequence[str]) -> None:
    """Make DRM nodes, and the kernel's directories that name those of each GPU."""
    dri = namespace.outside(Path("/dev/dri"))
    shutil.rmtree(dri, ignore_errors=True)
    dri.mkdir()
    namespace.mount("-t", "tmpfs", "pci", "/sys/bus/pci/devices")
    for index, bus in enumerate(buses):
        for kind, first, group in _DRM:
            name = f"{kind}{first + index}"
            os.mknod(dri / name, 0o020000, os.makedev(226, first + index))
            (dri / name).chmod(0o660)
            os.chown(dri / name, 0, group)
            place = Path("/sys/bus/pci/devices", bus, "drm", name)
            namespace.outside(place).mkdir(parents=True)


def record(name: str, version: str) -> str:
    """Return what nvidia-ctk of that version prints. Raises NamespaceError, RuntimeError."""
    layout = LAYOUTS[name]
    ctk = dataclasses.replace(NVIDIA_CTK, version=version).ensure()
    host = config.load(config.DEFAULT_FILE).with_gpus([40 << 30] * layout.gpus)
    with closing(Namespace()) as namespace:
        for place in (*_COVERED, "/dev"):
            namespace.cover(Path(place))
        simulated = namespace.directory / "sim"
        sizes = [option for gpu in host.gpus for option in ("--gpu", str(gpu.memory_bytes))]
        up = [sys.executable, "-m", "simgpu", "up", "--dir", str(simulated)]
        namespace.run([*up, "--config", str(config.DEFAULT_FILE), *sizes])
        root, options = namespace.outside(Path("/")), ["--format=json", *layout.options]
        if layout.in_pod:
            root = namespace.directory / "tree"
            root.mkdir()
            namespace.run(["mkdir", "-p", MOUNT])
            namespace.mount("--bind", root, MOUNT)
            options = [*OPTIONS[2:], f"--driver-root={MOUNT}", "--dev-root=/"]
            options += ["--nvidia-cdi-hook-path=/run/gpuslice/.store/nvidia-cdi-hook"]
        _install(layout, namespace, root, [gpu.minor for gpu in host.gpus])
        if layout.drm:
            _drm(namespace, [f"{g.pci_domain:04x}:{g.pci_bus:02x}:00.0" for g in host.gpus])
        command = [str(ctk), "--quiet", "cdi", "generate", *options]
        done = namespace.run(command, {"SIMGPU_DIR": str(simulated)})
        if done.returncode != 0:
            raise RuntimeError(f"{name} {version}: {done.stderr}")
        return done.stdout


def main() -> None:
    for file in RECORDED.iterdir():
        name, _, version = file.stem.rpartition("-")
        file.write_text(record(name, version))


if __name__ == "__main__":
    main()
