"""nvidia-ctk, which describes GPUs to a container runtime (CDI): built from its published module.

It needs cgo, because it loads the driver's NVML by name. Standard library only: setup runs it.
"""

from __future__ import annotations

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
