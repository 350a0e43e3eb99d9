"""NVIDIA's container runtime on a host of the lab (host.py), as the toolkit's package installs it.

The programs are NVIDIA's own. The runtime asks the driver for its GPUs: the simulated one. Where
Options.default_runtime names a handler, containerd runs all containers without a RuntimeClass by
it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from lab.node.namespace import Namespace
from tools.images.nvidia_ctk import NVIDIA_CDI_HOOK, NVIDIA_CONTAINER_RUNTIME, NVIDIA_CTK

PROGRAM: Final = Path("/usr/bin/nvidia-container-runtime")
CONFIG: Final = Path("/etc/nvidia-container-runtime/config.toml")

# GPU Operator's toolkit has such a script, too. The variable is the simulated driver's.
_WRAPPER: Final = """\
#!/bin/sh
SIMGPU_DIR={sim_dir} exec {program}.real "$@"
"""


def install(namespace: Namespace, sim_dir: Path, config: str = "") -> None:
    """config: the toolkit's whole file; "" has its defaults.

    Builds the programs where the cache has none. Raises NamespaceError.
    """
    for program in (NVIDIA_CDI_HOOK, NVIDIA_CTK):
        shutil.copy(program.ensure(), namespace.outside(Path("/usr/bin", program.name)))
    real = PROGRAM.with_suffix(".real")
    shutil.copy(NVIDIA_CONTAINER_RUNTIME.ensure(), namespace.outside(real))
    namespace.write(PROGRAM, _WRAPPER.format(sim_dir=sim_dir, program=PROGRAM), 0o755)
    namespace.write(CONFIG, config)
