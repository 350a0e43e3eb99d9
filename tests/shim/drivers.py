"""Small drivers, each for one test file: a few functions in C, as libcuda.so.1."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parent / "c"
DRIVERS: Final = SOURCES / "drivers"
_SHARED: Final = ("-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1")
_FLAGS: Final = ("-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", *_SHARED)


def build_driver(directory: Path, source: Path | str, *, compiler: str = "gcc") -> Path:
    """Builds the driver into DIRECTORY, from a file of SOURCES or from a test's C text."""
    driver = directory / "libcuda.so.1"
    text = source if isinstance(source, str) else f'#include "{source}"\n'
    subprocess.run(
        [compiler, *_FLAGS, "-x", "c", "-", "-o", driver], input=text, text=True, check=True
    )
    return driver
