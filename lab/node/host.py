"""The lab's mount namespace as a host of its own: a GPU node as its operator finds it.

Later writes below its system directories are visible in the lab only, and end with it. NVIDIA's
driver is installed: the simulated one, in the directories of a distribution's package, with the CDI
spec that the container toolkit would generate.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.node import containerd, containerd_config
from lab.node.containerd import Paths
from lab.node.containerd_config import Options
from lab.node.namespace import Namespace
from simgpu.cdi import library_dir

_COVERED: Final = ("/etc", "/opt", "/run", "/usr", "/var")
CONTAINERD_ROOT: Final = Path("/var/lib/containerd")
RESTART: Final = Path("/usr/local/sbin/restart-containerd")
_RESTART: Final = """\
#!/bin/sh
# As systemd would: the owner of the cluster starts a containerd that has ended.
for process in /proc/[0-9]*; do
  [ "$(cat $process/comm 2>&1)" != containerd ] || kill "${process#/proc/}"
done
"""
"""The lab has no systemd."""
_LIBRARIES: Final = ("libcuda.so.1", "libnvidia-ml.so.1")


def make(namespace: Namespace, build: Path, sim_dir: Path, programs: Path) -> None:
    """build: where the simulated driver was built. programs: containerd's directory.

    Raises NamespaceError.
    """
    for place in map(Path, _COVERED):
        namespace.cover(place)
    root = namespace.directory / "root" / "containerd"
    for made, place in ((root, CONTAINERD_ROOT), (sim_dir / "cdi", Path("/run/cdi"))):
        made.mkdir(parents=True, exist_ok=True)
        namespace.outside(place).mkdir(parents=True, exist_ok=True)
        # containerd's snapshots are overlays, which cannot have their upper layer on an overlay.
        namespace.mount("--bind", made, place)
    for name in _LIBRARIES:
        shutil.copy(build / "lib" / "simgpu" / name, namespace.outside(Path(library_dir(), name)))
    shutil.copy(build / "bin" / "nvidia-smi", namespace.outside(Path("/usr/bin/nvidia-smi")))
    for program in programs.iterdir():
        installed = namespace.outside(Path("/usr/bin", program.name))
        installed.unlink(missing_ok=True)
        installed.symlink_to(program)
    namespace.write(RESTART, _RESTART, 0o755)
    # systemd does the same at boot: agents in pods make mounts that containerd must see.
    namespace.mount("--make-rshared", "/")


@dataclass(frozen=True, slots=True)
class Host:
    """A kind of host. make: its files and mounts, before containerd starts. paths: containerd's,
    from the lab's directory. config: containerd's configuration."""

    make: Callable[[Namespace, Path, Path, Path], None] = make
    paths: Callable[[Path], Paths] = containerd.standard
    config: Callable[[Options], str] = containerd_config.of_host


STANDARD: Final = Host()
