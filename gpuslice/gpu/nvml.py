"""Initializes NVML from the driver root."""

from __future__ import annotations

import pynvml

from gpuslice.gpu.driver_root import NVML, NotFoundError, load, seen_root


def start() -> None:
    """Initialize NVML. Raises NotFoundError and pynvml.NVMLError."""
    if seen_root() is not None:
        try:
            load(NVML)
        except OSError as error:
            raise NotFoundError(f"{error}: it does not fit this program's libc or CPU") from error
    pynvml.nvmlInit()
