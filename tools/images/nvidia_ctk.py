"""NVIDIA's programs for CDI, built from their published module; with cgo, because they are linked
with NVML.

nvidia-ctk describes GPUs to a container runtime. nvidia-cdi-hook is what a description has the
runtime execute on the host, where the image's glibc is not: it is linked statically.
nvidia-container-runtime runs runc with the GPUs that a container requests: the tests' default
runtime, as some platforms have it.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from tools.published import Published

_MODULE: Final = "github.com/NVIDIA/nvidia-container-toolkit"
NVIDIA_CTK: Final = Published(
    name="nvidia-ctk",
    version="1.20.1",
    module=_MODULE,
    package="cmd/nvidia-ctk",
    version_variable=f"{_MODULE}/internal/info.version",
    free_bytes_wanted=1_000_000_000,
    cgo=True,
)
NVIDIA_CDI_HOOK: Final = dataclasses.replace(
    NVIDIA_CTK, name="nvidia-cdi-hook", package="cmd/nvidia-cdi-hook", static=True
)
NVIDIA_CONTAINER_RUNTIME: Final = dataclasses.replace(
    NVIDIA_CTK, name="nvidia-container-runtime", package="cmd/nvidia-container-runtime"
)
PROGRAMS: Final = {each.name: each for each in (NVIDIA_CDI_HOOK, NVIDIA_CTK)}
