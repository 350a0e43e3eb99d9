"""Makes a platform's node in the lab's namespaces: its directories, driver, toolkit, containerd.

It leaves out what no lab can have: systemd, so that containers have cgroupfs' cgroups, and the
platform's programs other than the driver's, the toolkit's and containerd's. The simulated GPUs'
sockets are in /dev/simgpu, because the driver looks there as it looks for device nodes.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lab.node import containerd as lab_containerd
from lab.node.containerd import Paths
from lab.node.containerd_config import PAUSE_IMAGE, Options
from lab.node.host import Host
from lab.node.namespace import Namespace
from simgpu.config import HostConfig
from tests.nri_plugin.cdi.record_specs import RECORDED
from tests.platforms import selinux, toml
from tests.platforms.platform import (
    CONTAINER,
    CRI,
    DRIVER,
    NRI,
    OLD_CRI,
    READY,
    Containerd,
    Driver,
    Platform,
    Toolkit,
)
from tools.images.nvidia_ctk import NVIDIA_CONTAINER_RUNTIME, PROGRAMS

_HIDDEN: Final = "/run/of-the-lab"
SIMULATED: Final = Path("/dev/simgpu")
PLUGINS: Final = "/var/lib/kubelet/device-plugins"
_COVERED: Final = ("/etc", "/opt", "/usr", "/var", "/home")
_DEVICES: Final = {
    "null": "c 1 3",
    "zero": "c 1 5",
    "full": "c 1 7",
    "random": "c 1 8",
    "urandom": "c 1 9",
    "tty": "c 5 0",
    "kmsg": "c 1 11",
    "fuse": "c 10 229",
    "nvidiactl": "c 195 255",
    "nvidia-modeset": "c 195 254",
    "nvidia-uvm": "c 235 0",
    "nvidia-uvm-tools": "c 235 1",
    "nvidia0": "c 195 0",
}
_DRM: Final = {"dri/card0": "c 226 0", "dri/renderD128": "c 226 128"}
_DRM_OF_GPU: Final = "/sys/bus/pci/devices/0000:17:00.0/drm"
"""Where nvidia-ctk finds the DRM nodes of the simulated GPU."""
_OF_DRM: Final = [
    "chmod 660 $d/dri/card0 $d/dri/renderD128",
    "chgrp 44 $d/dri/card0; chgrp 105 $d/dri/renderD128",
    "mount -t tmpfs pci /sys/bus/pci/devices",
    f"mkdir -p {_DRM_OF_GPU}/card0 {_DRM_OF_GPU}/renderD128",
]
_LIBRARIES: Final = ("libcuda.so", "libnvidia-ml.so")
_EMPTY: Final = ("libnvidia-ptxjitcompiler.so", "libnvidia-nvvm.so", "libcudadebugger.so")
"""Further libraries that compute may load, as empty files. A CDI spec only needs names."""
_DRIVER_READY: Final = f"""\
IS_HOST_DRIVER=false
NVIDIA_DRIVER_ROOT={CONTAINER}
DRIVER_ROOT_CTR_PATH={CONTAINER}
NVIDIA_DEV_ROOT={CONTAINER}
DEV_ROOT_CTR_PATH={CONTAINER}
"""


@dataclass(frozen=True, slots=True)
class Tree:
    """A platform's host in the lab. hidden: containerd's sockets are not at the platform's paths,
    because the platform's runtime is not containerd."""

    platform: Platform
    hidden: bool = False

    def host(self) -> Host:
        return Host(self.make, self.paths, self.config)

    def paths(self, directory: Path) -> Paths:
        described = self.platform.containerd
        standard = lab_containerd.standard(directory)
        state = Path(_HIDDEN if self.hidden else described.state)
        return Paths(
            state / "containerd.sock",
            standard.nri_socket,
            state,
            standard.cdi,
            standard.cni,
            Path(described.file),
            standard.log,
        )

    def config(self, _: Options) -> str:
        hidden: dict[str, Any] = {
            "state": _HIDDEN,
            "grpc": {"address": f"{_HIDDEN}/containerd.sock"},
            "ttrpc": {"address": f"{_HIDDEN}/containerd.sock.ttrpc"},
            "plugins": {NRI: {"disable": True}},
        }
        table = containerd_table(self.platform.containerd)
        return toml.text(toml.merged(table, hidden) if self.hidden else table)

    def make(
        self, namespace: Namespace, build: Path, sim_dir: Path, _: HostConfig, programs: Path
    ) -> None:
        """Make the host. Raises NamespaceError."""
        directory = namespace.directory
        if "/" in self.platform.read_only:
            # Without mounts of their own, /tmp and the lab's files would become read-only, too.
            _shell(
                namespace,
                f"umount {directory}/run; mount --bind /tmp /tmp",
                f"mount --bind {directory} {directory}",
            )
        for place in map(Path, _COVERED):
            namespace.cover(place)
        namespace.mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
        _devices(namespace, sim_dir, self.platform.driver.drm)
        root = directory / "root" / "containerd"
        place = Path(self.platform.containerd.root)
        for made in (root, namespace.outside(place)):
            made.mkdir(parents=True, exist_ok=True)
        # containerd's snapshots are overlays, and no overlay's upper layer may be on another.
        namespace.mount("--bind", root, place)
        for program in programs.iterdir():
            installed = namespace.outside(Path("/usr/bin", program.name))
            installed.unlink(missing_ok=True)
            installed.symlink_to(program)
        self._write(namespace)
        if self.platform.selinux:
            selinux.lay(namespace)
        _driver(namespace, build, self.platform.driver)
        if self.platform.toolkit is not None:
            _toolkit(namespace, self.platform.toolkit)
        # systemd does so at boot: containerd must see mounts that agents in pods make.
        namespace.mount("--make-rshared", "/")

    def _write(self, namespace: Namespace) -> None:
        described = self.platform.containerd
        os_release = "".join(f'{key}="{value}"\n' for key, value in self.platform.os.items())
        namespace.outside(Path("/etc/os-release")).unlink(missing_ok=True)
        namespace.write(Path("/etc/os-release"), os_release)
        for path, table in described.imported.items():
            namespace.write(Path(path), toml.text(table))
        for path, text in self.platform.files.items():
            namespace.write(Path(path), text)
        namespace.outside(Path(PLUGINS)).mkdir(parents=True, exist_ok=True)
        if not self.platform.no_cdi_directory:
            namespace.outside(Path("/etc/cdi")).mkdir(exist_ok=True)


def containerd_table(described: Containerd) -> dict[str, Any]:
    """Return the platform's configuration with two changes. It names the lab's pause image, because
    no registry is reachable. systemd makes no cgroups, because it does not run."""
    theirs = dict(described.config)
    runtimes = _runtimes(theirs)
    cgroups: dict[str, Any] = {
        name: {"options": {"SystemdCgroup": False}}
        for name, table in runtimes.items()
        if "SystemdCgroup" in table.get("options", {})
    }
    ours: dict[str, Any] = {"restrict_oom_score_adj": True, "containerd": {"runtimes": cgroups}}
    if theirs["version"] == 2 and CRI not in theirs.get("plugins", {}):
        plugins = {OLD_CRI: {**ours, "sandbox_image": PAUSE_IMAGE}}
    else:
        pinned = {"pinned_images": {"sandbox": PAUSE_IMAGE}}
        plugins = {CRI: ours, "io.containerd.cri.v1.images": pinned}
    # The machine may stall for two seconds, NRI's default, although the agent does not hang.
    plugins[NRI] = {"plugin_request_timeout": "8s"}
    return toml.merged(theirs, {"plugins": plugins})


def _runtimes(config: Any) -> dict[str, Any]:
    plugins = config.get("plugins", {})
    cri = plugins.get(CRI) or plugins.get(OLD_CRI) or {}
    found: dict[str, Any] = cri.get("containerd", {}).get("runtimes", {})
    return found


def _shell(namespace: Namespace, *lines: str) -> None:
    done = namespace.run(["sh", "-e", "-c", "\n".join(lines)])
    if done.returncode != 0:
        raise RuntimeError(f"{done.stderr.strip()}\nof:\n" + "\n".join(lines))


def _devices(namespace: Namespace, sim_dir: Path, drm: bool) -> None:
    """Make a /dev for the node, with the driver's nodes of one GPU."""
    nodes = {**_DEVICES, **(_DRM if drm else {})}
    _shell(
        namespace,
        f"d={namespace.directory}/host-dev; mkdir $d; mount -t tmpfs -o mode=755 dev $d",
        f"mkdir $d/pts $d/shm $d/mqueue $d/char $d/simgpu{' $d/dri' * drm}",
        *(
            f"mknod -m 666 $d/{name} {what}; ln -s ../{name} $d/char/{what[2:].replace(' ', ':')}"
            for name, what in nodes.items()
        ),
        "ln -s pts/ptmx $d/ptmx; ln -s /proc/self/fd $d/fd; ln -s fd/0 $d/stdin",
        "ln -s fd/1 $d/stdout; ln -s fd/2 $d/stderr",
        "mount --bind /dev/pts $d/pts; mount -t tmpfs shm $d/shm",
        f"mkdir -p {sim_dir}/gpus; mount --bind {sim_dir}/gpus $d/simgpu",
        *(_OF_DRM * drm),
        "mount --move $d /dev",
    )


def _driver(namespace: Namespace, build: Path, driver: Driver) -> None:
    root = namespace.outside(Path("/"))
    if driver.in_container:
        start_driver_container(namespace, build, driver)
    else:
        _install(namespace, "/", root, build, driver)
    for path in driver.sockets:
        # On a node the services listen. Here the sockets only exist, which suffices for a CDI spec.
        program = "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])"
        _shell(namespace, f"mkdir -p $(dirname {path}); {sys.executable} -c '{program}' {path}")


def _install(namespace: Namespace, inside: str, root: Path, build: Path, driver: Driver) -> None:
    """Install the simulated driver's files under NVIDIA's names and links. inside, root: the root
    directory as the lab sees it, and as this machine sees it."""
    libraries, programs = root / driver.libraries[1:], root / driver.programs[1:]
    for directory in (libraries, programs):
        directory.mkdir(parents=True, exist_ok=True)
    for name in _LIBRARIES:
        shutil.copy(build / "lib" / "simgpu" / f"{name}.1", libraries / f"{name}.{DRIVER}")
    for name in _EMPTY:
        (libraries / f"{name}.{DRIVER}").touch()
    for name in (*_LIBRARIES, *_EMPTY):
        (libraries / f"{name}.1").symlink_to(f"{name}.{DRIVER}")
        (libraries / name).symlink_to(f"{name}.1")
    shutil.copy(build / "bin" / "nvidia-smi", programs / "nvidia-smi")
    for link, target in driver.links.items():
        (root / link[1:]).parent.mkdir(parents=True, exist_ok=True)
        (root / link[1:]).symlink_to(target)
    if driver.searched:
        conf = root / "etc/ld.so.conf.d/nvidia.conf"
        conf.parent.mkdir(parents=True, exist_ok=True)
        conf.write_text("".join(f"{each}\n" for each in driver.searched))
    if driver.searched or driver.in_container:
        _shell(namespace, f"ldconfig -r {inside}")


def start_driver_container(namespace: Namespace, build: Path, driver: Driver) -> None:
    """Add what GPU Operator's driver container and validator leave once the driver is loaded."""
    root = namespace.directory / "driver-container"
    # The container has its own root file system. Its /dev is a slave of the host's: what the
    # container unmounts stays mounted on the host.
    _shell(
        namespace,
        f"mkdir -p {root} {CONTAINER}; mount -t tmpfs -o mode=755 driver {root}",
        f"mount --make-private {root}; cd {root}; mkdir dev etc run tmp",
    )
    _install(namespace, str(root), namespace.outside(root), build, driver)
    _shell(
        namespace,
        f"mount --bind {root} {CONTAINER}",
        f"mount --rbind --make-rslave /dev {CONTAINER}/dev",
    )
    namespace.write(Path(READY), _DRIVER_READY)


def stop_driver_container(namespace: Namespace) -> None:
    root = namespace.directory / "driver-container"
    namespace.outside(Path(READY)).unlink()
    _shell(namespace, f"umount --recursive --lazy {CONTAINER}; umount --lazy {root}")


def boot(namespace: Namespace, platform: Platform) -> None:
    """Do what the platform's services do once the GPUs exist: make the CDI spec. Then make file
    systems read-only or noexec where the platform has them so."""
    toolkit = platform.toolkit
    if toolkit is not None and toolkit.recorded:
        text = (RECORDED / f"{toolkit.recorded}.json").read_text()
        namespace.write(Path(toolkit.spec), text)
    elif toolkit is not None and toolkit.spec:
        _shell(
            namespace,
            f"mkdir -p $(dirname {toolkit.spec})",
            f"{toolkit.programs}/nvidia-ctk --quiet cdi generate --output={toolkit.spec}"
            f" {' '.join(toolkit.options)}",
        )
    for option, places in (("ro", platform.read_only), ("noexec", platform.noexec)):
        for place in places:
            namespace.mount("-o", f"remount,bind,{option}", place)


def _toolkit(namespace: Namespace, toolkit: Toolkit) -> None:
    programs = namespace.outside(Path(toolkit.programs))
    programs.mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS.values():
        shutil.copy(program.ensure(), programs / program.name)
    if toolkit.runtime:
        shutil.copy(NVIDIA_CONTAINER_RUNTIME.ensure(), namespace.outside(Path(toolkit.runtime)))
    if toolkit.config:
        file = Path("/etc/nvidia-container-runtime/config.toml")
        namespace.write(file, toml.text(toolkit.config))
