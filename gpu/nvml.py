"""Initializes NVML from the driver root."""

from __future__ import annotations

import os

import pynvml

from gpu.driver_root import NVML, VARIABLE, NotFoundError, load


def start() -> None:
    """Initialize NVML. Raises NotFoundError and pynvml.NVMLError."""
    if os.environ.get(VARIABLE):
        try:
            load(NVML)
        except OSError as error:
            raise NotFoundError(f"{error}: it does not fit this program's libc or CPU") from error
    pynvml.nvmlInit()
