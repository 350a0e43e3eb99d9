"""NVIDIA's container runtime on a host of the lab (host.py), as the toolkit's package installs it.

The programs are NVIDIA's own. The runtime asks the driver for its GPUs: the simulated one, in files
with a version as a driver's package has them, beside device nodes that no driver serves. Where
Options.default_runtime names a handler, containerd runs all containers without a RuntimeClass by
it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from lab.node.namespace import Namespace
from simgpu.cdi import library_dir
from tools.images.nvidia_ctk import NVIDIA_CDI_HOOK, NVIDIA_CONTAINER_RUNTIME, NVIDIA_CTK

PROGRAM: Final = Path("/usr/bin/nvidia-container-runtime")
CONFIG: Final = Path("/etc/nvidia-container-runtime/config.toml")
_DRIVER_VERSION: Final = "580.65.06"
_MAJOR: Final = 195
_UVM: Final = (510, 0)

# GPU Operator's toolkit has such a script, too. The variable is the simulated driver's.
_WRAPPER: Final = """\
#!/bin/sh
SIMGPU_DIR={sim_dir} exec {program}.real "$@"
"""


def install(namespace: Namespace, sim_dir: Path, gpus: int = 1, config: str = "") -> None:
    """gpus: how many the host has. config: the toolkit's whole file; "" has its defaults.

    Builds the programs where the cache has none. Raises NamespaceError.
    """
    _name_versions(namespace)
    _make_nodes(namespace, gpus)
    for program in (NVIDIA_CDI_HOOK, NVIDIA_CTK):
        shutil.copy(program.ensure(), namespace.outside(Path("/usr/bin", program.name)))
    real = PROGRAM.with_suffix(".real")
    shutil.copy(NVIDIA_CONTAINER_RUNTIME.ensure(), namespace.outside(real))
    namespace.write(PROGRAM, _WRAPPER.format(sim_dir=sim_dir, program=PROGRAM), 0o755)
    namespace.write(CONFIG, config)


def _name_versions(namespace: Namespace) -> None:
    for name in ("libcuda.so", "libnvidia-ml.so"):
        link = namespace.outside(Path(library_dir(), f"{name}.1"))
        if not link.is_symlink():
            link.rename(link.with_name(f"{name}.{_DRIVER_VERSION}"))
            link.symlink_to(f"{name}.{_DRIVER_VERSION}")


def _make_nodes(namespace: Namespace, gpus: int) -> None:
    """In a /dev of the lab's own, unless the host has them."""
    if namespace.outside(Path("/dev/nvidiactl")).exists():
        return
    namespace.cover(Path("/dev"))
    nodes = {f"nvidia{minor}": (_MAJOR, minor) for minor in range(gpus)}
    nodes |= {"nvidiactl": (_MAJOR, 255), "nvidia-uvm": _UVM}
    for name, (major, minor) in nodes.items():
        namespace.run(["mknod", "-m", "666", f"/dev/{name}", "c", str(major), str(minor)])
